"""Recorded exchanges about the hierarchical cache, replayed as scenes against our engine."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.contract.replay import RECORDED, compare, expanded, holds, replay
from tests.engine.contract.storage_scenes import BETTER, SAME, SCENES, SCENES_DP, SCENES_PLAIN
from tests.engine.process.storage_client import (
    attach,
    clear,
    detach,
    flush,
    generate,
    status,
    tiers,
    until_idle,
)
from tests.engine.weights.checkpoints import write
from tests.fakes.engine_process import Background, EngineProcess

THEIR_FOLDER = "/data/hicache_other"
MODELS = {"/models/base": "base", "/models/pirate": "other"}
MAX_TOKENS = 4096  # on the device; the host has twice as many
KEYS = [
    "hicache_storage_backend",
    "hicache_storage_backend_extra_config",
    "hicache_storage_prefetch_policy",
    "hicache_write_policy",
]
EVERY = {**SCENES, **SCENES_DP, **SCENES_PLAIN}


def test_each_verdict_is_played_in_a_scene() -> None:
    words = {word for scene in EVERY.values() for word in scene.split()}
    assert {word for word in words if not word.startswith("!")} == {*SAME, *BETTER}


class Played:
    """An engine on which scenes are played, one after another."""

    def __init__(self, engine: EngineProcess, models: Path) -> None:
        self.engine = engine
        self.models = models
        self.folder = engine.dir / "hicache_other"
        self.foreign = self.folder / "foreign.txt"
        self.stream: Background | None = None
        self.request: dict[str, Any] = {}  # of the newest generation
        self.answers: dict[str, Any] = {}  # by name, of generations
        self.said: dict[tuple[str, str], list[int]] = {}  # weights and prompt → newest ids
        config = RECORDED["hic_attach_file"]["request"]
        self.words = {"config": self.ours(config)["hicache_storage_backend_extra_config_json"]}

    def reset(self) -> None:
        """Nothing attached or stored, default policies, the first checkpoint."""
        engine = self.engine
        until_idle(engine)
        policies = {
            "hicache_storage_prefetch_policy": "timeout",
            "hicache_write_policy": "write_through",
        }
        for step in (detach(engine), attach(engine, **policies), clear(engine), detach(engine)):
            assert step.status_code == 200, step.text
        shutil.rmtree(self.folder, ignore_errors=True)
        body = {"model_path": str(self.models / "base"), "timeout": 120}
        assert engine.admin("POST", "/update_weights_from_disk", json=body).status_code == 200
        flush(engine)

    def play(self, script: str) -> None:
        for word in script.split():
            if word.startswith("!"):
                getattr(self, f"do_{word[1:]}")()
            else:
                self.judge(word, self.send_settled(word))

    # ---- what the recording did not note -----------------------------------------------------

    def do_stream(self) -> None:
        until_idle(self.engine)
        self.stream = self.engine.busy(1500, routed_dp_rank=0)

    def do_end(self) -> None:
        assert self.stream is not None and self.stream.is_running
        self.engine.admin("POST", "/abort_request", json={"abort_all": True})
        self.stream.result()
        self.stream = None
        until_idle(self.engine)

    def do_is_in_the_folder(self) -> None:
        """Pages went where the attached settings say."""
        until_idle(self.engine)
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) > 100_000

    def do_is_stored(self) -> None:
        """What the newest prompt has in whole pages comes from storage."""
        prompt = self.newest_prompt()
        assert self.from_tiers(prompt) == (0, 0, (len(prompt) - 1) // 16 * 16)

    def do_is_not_stored(self) -> None:
        assert self.from_tiers(self.newest_prompt()) == (0, 0, 0)

    def newest_prompt(self) -> list[int]:
        ids: list[int] = expanded(self.request["input_ids"])
        return ids

    def from_tiers(self, prompt: list[int]) -> tuple[int, int, int]:
        until_idle(self.engine)
        flush(self.engine)
        return tiers(generate(self.engine, prompt, 1))

    def do_foreign_file(self) -> None:
        self.foreign.write_text("of somebody else")

    def do_foreign_file_is_left(self) -> None:
        assert self.foreign.read_text() == "of somebody else"

    def do_first_token_of_the_old(self) -> None:
        self.answers["old"] = replay(self.engine, RECORDED["hic2_clean_lp"]).json()

    def do_stale_is_clean(self) -> None:
        """The number that gave the real server away."""
        old, stale, clean = (
            self.answers[name]["meta_info"]["output_token_logprobs"][0]
            for name in ("old", "hic2_stale_lp", "hic2_clean_lp")
        )
        assert stale[1] == clean[1] and stale[0] == pytest.approx(clean[0], abs=1e-4)
        assert old[1] != clean[1] or abs(old[0] - clean[0]) > 1e-2

    def do_evict(self) -> None:
        """Other prompts, as many tokens as the device holds."""
        for index in range(MAX_TOKENS // 512):
            generate(self.engine, [1000 + index] * 512, 1)

    # ---- requests ----------------------------------------------------------------------------

    def send_settled(self, name: str) -> httpx.Response:
        """Copies of earlier requests go on for a moment; the recording waited between its steps."""
        if self.stream is None and RECORDED[name]["auth"] == "admin":
            until_idle(self.engine)
        return self.send(name)

    def send(self, name: str) -> httpx.Response:
        row = RECORDED[name]
        request = row.get("request")
        if isinstance(request, dict):
            request = self.ours(request)
            self.request = request if row["path"] == "/generate" else self.request
        return replay(self.engine, {**row, "request": request})

    def ours(self, value: Any) -> Any:
        """Their request or answer with our folders."""
        if isinstance(value, dict) and value.get("model_path") in MODELS:
            value = {**value, "model_path": str(self.models / MODELS[value["model_path"]])}
        text = json.dumps(value)
        return json.loads(text.replace(THEIR_FOLDER, str(self.folder)))

    # ---- verdicts ----------------------------------------------------------------------------

    def judge(self, name: str, answer: httpx.Response) -> None:
        row, better = RECORDED[name], BETTER.get(name)
        where = f"{name}: {answer.status_code} {answer.text[:2000]}"
        assert "hunter2" not in answer.text, where
        if better is None:
            assert answer.status_code == row["status"], where
            self.judge_same(row, answer, where)
        else:
            where = f"{better.why}; {where}"
            assert answer.status_code == better.status, where
            if isinstance(better.holds, re.Pattern):
                assert better.holds.search(answer.text), where
            else:
                assert holds(better.holds, answer.json(), self.words), where
        if row["path"] == "/generate":
            self.note(name, answer.json())

    def judge_same(self, row: dict[str, Any], answer: httpx.Response, where: str) -> None:
        theirs = self.ours(row.get("body"))
        if theirs is None:
            assert answer.text == row["body_text"], where
            return
        ours = answer.json()
        if row["path"] == "/generate":
            self.judge_generation(theirs, ours, where)
        elif row["path"].startswith("/hicache") and row["status"] == 200:
            assert {key: ours[key] for key in KEYS} == theirs, where
        else:
            assert {key: ours[key] for key in theirs} == theirs, where

    def judge_generation(self, theirs: dict[str, Any], ours: dict[str, Any], where: str) -> None:
        """Ids are other ones. SGLang leaves zeros out, and calls the backend `HiCacheFile`."""
        cached = theirs["meta_info"].pop("cached_tokens_details") or {}
        compare(theirs, ours, greedy=False)
        for key in ("cached_tokens", "prompt_tokens", "completion_tokens", "finish_reason"):
            assert ours["meta_info"][key] == theirs["meta_info"][key], where
        details = ours["meta_info"]["cached_tokens_details"]
        for tier in ("device", "host", "storage"):
            assert details[tier] == cached.get(tier, 0), where
        assert ("storage_backend" not in cached) or details["storage_backend"] == "file", where

    def note(self, name: str, answer: dict[str, Any]) -> None:
        """The same weights say the same, whichever tier the prompt came from."""
        self.answers[name] = answer
        weights = self.engine.client.get("/model_info").json()["weights"]["checksum"]
        ids, prompt = answer["output_ids"], json.dumps(self.request["input_ids"])
        known = self.said.setdefault((weights, prompt), ids)
        assert all(one == other for one, other in zip(known, ids, strict=False)), name


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path) -> Path:
    root = tmp_path_factory.mktemp("contract-storage")
    for seed, name in enumerate(("base", "other")):
        write(root / name, seed, smollm2_dir)
    return root


def _started(
    models: Path, kernels: Path, dp_size: int, *flags: str, **env: str
) -> Iterator[Played]:
    engine = EngineProcess(models / "base", kernels, dp_size=dp_size, max_total_tokens=MAX_TOKENS)
    engine.command += flags
    engine.environment |= env
    try:
        yield Played(engine.start(), models)
    finally:
        engine.stop()


@pytest.fixture(scope="module")
def one(models: Path, cpu_ext_dir: Path) -> Iterator[Played]:
    yield from _started(models, cpu_ext_dir, 1, "--enable-hierarchical-cache")


@pytest.fixture(scope="module")
def two(models: Path, cpu_ext_dir: Path) -> Iterator[Played]:
    yield from _started(models, cpu_ext_dir, 2, "--enable-hierarchical-cache")


@pytest.fixture(scope="module")
def plain(models: Path, cpu_ext_dir: Path) -> Iterator[Played]:
    yield from _started(models, cpu_ext_dir, 1, QUIESCE_ADMIN_API_KEY="")


@pytest.mark.process
@pytest.mark.parametrize("scene", sorted(SCENES))
def test_a_scene_on_one_rank(one: Played, scene: str) -> None:
    one.reset()
    one.play(SCENES[scene])
    assert "hunter2" not in one.engine.log()


@pytest.mark.process
@pytest.mark.parametrize("scene", sorted(SCENES_DP))
def test_a_scene_on_two_ranks(two: Played, scene: str) -> None:
    two.reset()
    two.play(SCENES_DP[scene])
    assert [rank["attached"] for rank in status(two.engine)["ranks"]] == [False, False]


@pytest.mark.process
@pytest.mark.parametrize("scene", sorted(SCENES_PLAIN))
def test_a_scene_without_a_host_tier_or_an_admin_key(plain: Played, scene: str) -> None:
    plain.play(SCENES_PLAIN[scene])

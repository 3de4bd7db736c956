"""Recorded exchanges about weights, pauses and memory, replayed as scenes against our engine.

Its checkpoints are small ones of ours, so numbers and texts differ from the recording; what must
hold instead is that the same weights always say the same, and different ones do not.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.contract.replay import RECORDED, compare, compare_streams, holds, replay
from tests.engine.contract.scenes import BETTER, SAME, SCENES, SCENES_DP
from tests.engine.weights.checkpoints import BAD, checksum_of, weights_of, write
from tests.fakes.engine_process import Background, EngineProcess, events_of
from tests.fakes.waiting import PATIENCE_S, wait_until

# The recorded server's folders, and ours in their place: a good folder, or one made bad.
FOLDERS = {
    "/models/base": "base",
    "/models/pirate": "other",
    "/data/ck/missing": "missing tensor",
    "/data/ck/cfg_only": "no weights",
    "/data/ck/wrongshape": "misshapen tensor",
    "/data/ck/trunc": "truncated",
}
# A stream must outlast what is done beside it; our model is much faster. One that is paused
# meanwhile does so with fewer tokens.
STREAM_TOKENS, PAUSED_TOKENS = 2000, 600
EVERY = {**SCENES, **SCENES_DP}


def names_of(scene: str) -> list[str]:
    return [word.removeprefix("&") for word in EVERY[scene].split() if word != ";"]


def test_each_verdict_is_played_in_a_scene() -> None:
    played = {name for scene in EVERY for name in names_of(scene)}
    assert played == {*SAME, *BETTER}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path) -> Path:
    root = tmp_path_factory.mktemp("contract")
    for name in FOLDERS.values():
        write(root / name, 0 if name == "base" else 1, smollm2_dir)
        if name in BAD:
            BAD[name][0](root / name)
    return root


class Played:
    """An engine on which scenes are played, one after another."""

    def __init__(self, root: Path, kernels: Path, dp_size: int) -> None:
        self.root = root
        self.engine = EngineProcess(root / "base", kernels, dp_size=dp_size).start()
        self.words = {
            "base": checksum_of(weights_of(0), "float32"),
            "other": checksum_of(weights_of(1), "float32"),
            "name": str(root / "base"),
        }
        self.stream_tokens = STREAM_TOKENS
        self.said: dict[str, dict[str, list[int]]] = {}  # prompt → weights → answer

    def reset(self) -> None:
        """Serve the first checkpoint as version "default", whatever was done before."""
        engine = self.engine
        engine.until_serving()
        engine.admin("POST", "/end_weight_update", json={"abort": True})
        released = engine.client.get("/server_info").json()["released"]
        if released:
            engine.admin("POST", "/resume_memory_occupation", json={"tags": released})
        body = {"model_path": self.words["name"], "weight_version": "default", "mode": "abort"}
        assert engine.admin("POST", "/update_weights_from_disk", json=body).status_code == 200
        assert engine.admin("POST", "/continue_generation", json={}).status_code == 200
        engine.admin("POST", "/abort_request", json={"abort_all": True})
        engine.until_idle()

    def play(self, script: str) -> None:
        self.stream_tokens = PAUSED_TOKENS if "_pause" in script else STREAM_TOKENS
        begun: dict[str, Background] = {}
        for word in [*script.split(), ";"]:
            if word == ";":
                for name, work in begun.items():
                    self.judge(name, work.result())
                begun = {}
            elif word.startswith("&"):
                begun[word[1:]] = self.begin(word[1:])
            else:
                self.judge(word, self.send_settled(word))

    def send_settled(self, name: str) -> httpx.Response:
        """Loads are those of the ranks' newest reports, which may be a moment behind a reply."""
        better, answer = BETTER.get(name), self.send(name)
        gives_up_at = time.monotonic() + PATIENCE_S
        while time.monotonic() < gives_up_at:
            if better is None or "/v1/loads" not in RECORDED[name]["path"]:
                break
            if holds(better.holds, answer.json(), self.words):
                break
            time.sleep(0.05)
            answer = self.send(name)
        return answer

    def send(self, name: str) -> httpx.Response:
        row = RECORDED[name]
        request = row.get("request")
        if isinstance(request, dict):
            request = self.ours(request)
        return replay(self.engine, {**row, "request": request})

    def ours(self, request: dict[str, Any]) -> dict[str, Any]:
        """The request with our folders, and streams that last."""
        path = request.get("model_path")
        if path in FOLDERS:
            request = {**request, "model_path": str(self.root / FOLDERS[path])}
        if request.get("stream"):
            sampling = {**request["sampling_params"], "max_new_tokens": self.stream_tokens}
            request = {**request, "sampling_params": sampling}
        return request

    def begin(self, name: str) -> Background:
        """Send it in the background; returns when it is under way."""
        row, work = RECORDED[name], Background(lambda: self.send(name))
        if row["path"].startswith("/update"):
            wait_until(lambda: self.engine.operations()["open"], every_s=0.002)
        elif (row["request"] or {}).get("stream"):
            wait_until(lambda: sum(r["num_running_reqs"] for r in self.engine.loads()) == 1)
        else:
            time.sleep(0.2)
        return work

    # ---- verdicts ----------------------------------------------------------------------------

    def judge(self, name: str, answer: httpx.Response) -> None:
        row, better = RECORDED[name], BETTER.get(name)
        where = f"{name}: {answer.status_code} {answer.text[:2000]}"
        if better is None:
            assert answer.status_code == row["status"], where
            self.judge_same(row, answer)
        else:
            where = f"{better.why}; {where}"
            assert answer.status_code == better.status, where
            if isinstance(better.holds, re.Pattern):
                assert better.holds.search(answer.text), where
            elif better.holds is not None:
                assert holds(better.holds, answer.json(), self.words), where
        if row["path"] == "/generate" and answer.status_code == 200 and not row.get("sse_lines"):
            self.note(row["request"]["text"], answer.json()["output_ids"])

    def judge_same(self, row: dict[str, Any], answer: httpx.Response) -> None:
        theirs = row.get("body")
        if row.get("sse_lines"):
            compare_streams({**row, "request": {}}, answer)
            self.judge_stream(row, answer)
        elif row.get("body_text"):
            assert answer.text == row["body_text"], row["name"]
        elif isinstance(theirs, list):
            assert shape_of(answer.json()) == shape_of(theirs), row["name"]
        elif theirs is not None:
            ours = answer.json()
            compare(theirs, ours, greedy=False)
            for part in (lambda body: body, lambda body: body.get("meta_info", {})):
                version = part(theirs).get("weight_version")
                assert version is None or part(ours)["weight_version"] == version, row["name"]

    def judge_stream(self, row: dict[str, Any], answer: httpx.Response) -> None:
        """It ends as the recorded one did, and nothing that was streamed is taken back."""
        events = events_of(answer)
        wanted = "abort" if '"type":"abort"' in row["sse_lines"][-2] else "length"  # lines are cut
        ids, meta = events[-1]["output_ids"], events[-1]["meta_info"]
        assert meta["finish_reason"]["type"] == wanted, row["name"]
        assert wanted == "abort" or len(ids) == self.stream_tokens
        for event in events:
            assert ids[: len(event["output_ids"])] == event["output_ids"]

    def note(self, prompt: str, ids: list[int]) -> None:
        """The same weights say the same, other ones something else."""
        weights = self.engine.client.get("/model_info").json()["weights"]["checksum"]
        known = self.said.setdefault(prompt, {})
        assert known.setdefault(weights, ids) == ids
        assert len(set(map(tuple, known.values()))) == len(known)


def shape_of(value: Any) -> list[int]:
    """Sizes of nested lists, but for the last: our rows are shorter."""
    sizes = []
    while isinstance(value, list):
        sizes.append(len(value))
        value = value[0]
    return sizes if len(sizes) == 1 else sizes[:-1]


@pytest.fixture(scope="module")
def one(root: Path, cpu_ext_dir: Path) -> Iterator[Played]:
    played = Played(root, cpu_ext_dir, dp_size=1)
    yield played
    played.engine.stop()


@pytest.fixture(scope="module")
def two(root: Path, cpu_ext_dir: Path) -> Iterator[Played]:
    played = Played(root, cpu_ext_dir, dp_size=2)
    yield played
    played.engine.stop()


@pytest.mark.process
@pytest.mark.parametrize("scene", sorted(SCENES))
def test_a_scene_on_one_rank(one: Played, scene: str) -> None:
    one.reset()
    one.play(SCENES[scene])


@pytest.mark.process
@pytest.mark.parametrize("scene", sorted(SCENES_DP))
def test_a_scene_on_two_ranks(two: Played, scene: str) -> None:
    two.reset()
    two.play(SCENES_DP[scene])
    two.reset()

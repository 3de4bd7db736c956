"""Killing parts of a real engine in the middle of a weight update.

All ranks serve one set of weights afterwards, the recorded word is true, and what was pushed
outlives every restart.
"""

from __future__ import annotations

import random
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.torch import save

from tests.engine.weights.checkpoints import weights_of, write
from tests.fakes.engine_process import Background, EngineProcess
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.process

PROMPT = list(range(3, 40))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path) -> Path:
    root = tmp_path_factory.mktemp("faults") / "models"
    root.mkdir()
    for seed, name in enumerate(("base", "other", "third")):
        write(root / name, seed, smollm2_dir)
    return root


@pytest.fixture
def fresh(root: Path, cpu_ext_dir: Path) -> Iterator[EngineProcess]:
    """One of its own: the fifth death of a part within a minute is the end of an engine, and one
    that was started on another model forgets what was pushed."""
    engine = EngineProcess(root / "base", cpu_ext_dir)
    try:
        yield engine.start()
    finally:
        engine.stop()


@pytest.fixture(scope="module")
def shared(root: Path, cpu_ext_dir: Path) -> Iterator[EngineProcess]:
    engine = EngineProcess(root / "base", cpu_ext_dir)
    try:
        yield engine.start()
    finally:
        engine.stop()


@pytest.fixture
def engine(shared: EngineProcess, root: Path) -> Iterator[EngineProcess]:
    """The shared one, serving the base weights; its options afterwards are those of before."""
    settled(shared)
    done = update(shared, root / "base", mode="abort", weight_version="default")
    assert done is not None and done.status_code == 200, done
    command = list(shared.command)
    yield shared
    shared.command = command


def update(engine: EngineProcess, path: Path, **more: Any) -> httpx.Response | None:
    """None when the connection was lost with the frontend."""
    try:
        return engine.admin(
            "POST", "/update_weights_from_disk", json={"model_path": str(path), **more}
        )
    except httpx.TransportError:
        return None


def settled(engine: EngineProcess) -> dict[str, Any]:
    """Both ranks serve, and hold what is desired: the answer of weights_checker."""
    engine.until_serving()

    def agree() -> bool:
        return engine.admin("GET", "/weights_checker").status_code == 200

    wait_until(agree)
    return dict(engine.admin("GET", "/weights_checker").json())


def words(engine: EngineProcess) -> list[list[int]]:
    return [
        engine.generate(PROMPT, 8, routed_dp_rank=rank, sampling={"ignore_eos": True}).json()[
            "output_ids"
        ]
        for rank in (0, 1)
    ]


@pytest.mark.parametrize(
    "victim", ["rank 1", "frontend", pytest.param("rank 0", marks=pytest.mark.slow)]
)
def test_killed_at_any_moment_all_is_old_or_all_is_new(
    fresh: EngineProcess, root: Path, victim: str
) -> None:
    """Four moments of an update; a fifth death of one child in a minute would end the engine."""
    engine = fresh
    update(engine, root / "other")
    sums = {}
    for name in ("other", "third"):
        update(engine, root / name, mode="retract")
        sums[name] = settled(engine)["desired_checksum"]
    said = {sums["third"]: words(engine)[0]}
    update(engine, root / "other", mode="retract")
    said[sums["other"]] = words(engine)[0]
    rng = random.Random(victim)
    now = "other"
    seen = set()
    for attempt in range(4):
        target = "third" if now == "other" else "other"
        work = Background(
            lambda target=target, attempt=attempt: update(  # type: ignore[misc]
                engine,
                root / target,
                mode="retract",
                timeout=120,
                op_id=f"op-{victim[-1]}-{attempt}",
            )
        )
        time.sleep(rng.uniform(0.0, 0.35))
        engine.kill(victim)
        work.result()
        held = settled(engine)
        wait_until(lambda: not engine.operations()["open"])
        answer = engine.admin("GET", f"/operations/op-{victim[-1]}-{attempt}")
        outcome = answer.json()["outcome"] if answer.status_code == 200 else "never taken"
        seen.add(outcome)
        if outcome in ("succeeded", "partial"):
            assert held["desired_checksum"] == sums[target], answer.text
        else:
            assert held["desired_checksum"] == sums[now], answer.text
        now = "other" if held["desired_checksum"] == sums["other"] else "third"
        assert words(engine) == [said[held["desired_checksum"]]] * 2
    assert seen & {"succeeded", "failed", "partial"}


def test_a_rank_that_is_stopped_is_found_silent_and_nothing_changes(
    engine: EngineProcess, root: Path
) -> None:
    before = settled(engine)["desired_checksum"]
    engine.kill("rank 1", signal.SIGSTOP)
    answer = update(engine, root / "other", timeout=1, mode="retract")
    assert answer is not None and answer.status_code == 400, answer
    assert "silent" in answer.json()["ranks"][1]["message"] or "died" in answer.text
    held = settled(engine)  # it was killed, and another was started
    assert held["desired_checksum"] == before


@pytest.mark.parametrize("way", ["disk", "tensor"])
def test_what_was_pushed_outlives_a_restart_of_the_whole_engine(
    engine: EngineProcess, root: Path, way: str
) -> None:
    if way == "disk":
        assert update(engine, root / "other", weight_version="v7").status_code == 200  # type: ignore[union-attr]
    else:
        answer = engine.admin(
            "POST", "/update_weights_from_tensor?weight_version=v7",
            content=save(weights_of(1)), headers={"content-type": "application/octet-stream"},
        )  # fmt: skip
        assert answer.status_code == 200
    before, said = settled(engine), words(engine)
    engine.admin("POST", "/pause_generation", json={"mode": "retract"})
    engine.restart()
    wait_until(lambda: engine.client.get("/ready").status_code == 200)  # no pause outlives it
    after = settled(engine)
    assert after["desired_checksum"] == before["desired_checksum"]
    assert after["weight_version"] == "v7" and words(engine) == said
    engine.restart("--forget-weights", "--weight-version", "again")
    info = engine.client.get("/model_info").json()
    assert info["weight_version"] == "again" and info["weights"]["source"] == "start"
    assert settled(engine)["desired_checksum"] != before["desired_checksum"]


def test_a_pushed_folder_that_changed_while_the_engine_was_down_is_not_served(
    engine: EngineProcess, root: Path, tmp_path: Path
) -> None:
    """Its checksum is recorded: every rank is fenced and says so, until somebody decides."""
    moved = root / "pushed"
    shutil.copytree(root / "other", moved)
    assert update(engine, moved).status_code == 200  # type: ignore[union-attr]
    recorded = settled(engine)["desired_checksum"]
    shutil.copy(root / "third" / "model.safetensors", moved / "model.safetensors")
    engine.restart(is_awaited=False)

    def conditions() -> list[tuple[str, str]]:
        try:
            states = engine.client.get("/server_info").json()["internal_states"]
        except httpx.TransportError:
            return []
        return [(state["condition"], state["note"]) for state in states]

    wait_until(lambda: [one for one, _ in conditions()] == ["fenced", "fenced"])
    assert all(f"not {recorded}" in note for _, note in conditions())
    assert engine.client.get("/health").status_code == 503
    shutil.copy(root / "other" / "model.safetensors", moved / "model.safetensors")
    assert engine.admin("POST", "/operations/repair").status_code == 200
    assert settled(engine)["desired_checksum"] == recorded
    shutil.rmtree(moved)


def test_another_model_on_the_command_line_is_served(fresh: EngineProcess, root: Path) -> None:
    engine = fresh
    update(engine, root / "other")
    pushed = settled(engine)["desired_checksum"]
    engine.replace_flag("--model", str(root / "third"))
    engine.restart()
    assert settled(engine)["desired_checksum"] != pushed
    assert engine.client.get("/model_info").json()["weights"]["path"] == str(root / "third")


def test_a_folder_that_changes_under_a_running_engine_is_not_mixed_in(
    engine: EngineProcess, root: Path, tmp_path: Path
) -> None:
    """A rank that starts again loads just what the others serve, or nothing."""
    before = settled(engine)["desired_checksum"]
    kept = tmp_path / "kept"
    shutil.copytree(root / "base", kept)
    shutil.copy(root / "third" / "model.safetensors", root / "base" / "model.safetensors")
    try:
        engine.kill("rank 1")

        def state() -> dict[str, Any]:
            found = engine.client.get("/server_info").json()["internal_states"][1]
            return dict(found)

        wait_until(lambda: state()["condition"] == "fenced")
        assert f"not {before}" in state()["note"]
        served = engine.generate(PROMPT, 8)  # rank 0 serves on
        assert served.json()["meta_info"]["dp_rank"] == 0
        refused = update(engine, root / "other")
        assert refused is not None and refused.status_code == 503
        assert "rank 1 is fenced" in refused.json()["message"]
        failed = engine.admin("POST", "/operations/repair")
        assert failed.status_code == 400 and failed.json()["outcome"] == "partial"
    finally:
        shutil.copy(kept / "model.safetensors", root / "base" / "model.safetensors")
    repaired = engine.admin("POST", "/operations/repair")
    assert repaired.status_code == 200, repaired.text
    assert settled(engine)["desired_checksum"] == before


def test_a_full_disk_refuses_an_upload_and_leaves_nothing_of_it(
    engine: EngineProcess, root: Path
) -> None:
    folder = engine.dir / "weights"
    folder.mkdir(exist_ok=True)
    before = settled(engine)["desired_checksum"]
    kept = {path for path in folder.iterdir() if not path.name.startswith(".")}
    engine.limit_file_size("frontend", 1 << 20)
    answer = engine.admin(
        "POST", "/update_weights_from_tensor",
        content=save(weights_of(1)), headers={"content-type": "application/octet-stream"},
    )  # fmt: skip
    engine.limit_file_size("frontend", resource.RLIM_INFINITY)
    assert answer.status_code == 507, answer.text
    assert {path for path in folder.iterdir() if not path.name.startswith(".")} == kept
    assert settled(engine)["desired_checksum"] == before

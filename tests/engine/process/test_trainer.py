"""A trainer in a process of its own broadcasts weights to both ranks of a real engine over gloo.

When it never comes, dies, or stops half-way, the old weights serve on and the group is gone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.weights.checkpoints import weights_of, write
from tests.fakes.engine_process import Background, EngineProcess
from tests.fakes.stack import free_port

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
PROMPT = list(range(3, 40))
NAMES = sorted(weights_of(1))
LISTS = {
    "names": NAMES,
    "dtypes": ["bfloat16"] * len(NAMES),
    "shapes": [list(weights_of(1)[name].shape) for name in NAMES],
}


class Trainer:
    """The process; `say` lets it go on."""

    def __init__(self, plan: str, seed: int = 1) -> None:
        self.port = free_port()
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.engine.weights.trainer"]
        self.process = subprocess.Popen(
            [*command, str(self.port), "3", str(seed), plan],
            cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def until(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word

    def say(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path, cpu_ext_dir: Path
) -> Iterator[EngineProcess]:
    root = tmp_path_factory.mktemp("trainer")
    write(root / "base", 0, smollm2_dir)
    write(root / "other", 1, smollm2_dir)
    engine = EngineProcess(root / "base", cpu_ext_dir)
    try:
        yield engine.start()
    finally:
        engine.stop()


@pytest.fixture
def engine(shared: EngineProcess) -> EngineProcess:
    """The base weights, no group, no session."""
    shared.until_serving()
    base = shared.admin("GET", "/server_info").json()["weights_roots"][0] + "/base"
    done = shared.admin(
        "POST", "/update_weights_from_disk",
        json={"model_path": base, "weight_version": "base", "mode": "abort"},
    )  # fmt: skip
    assert done.status_code == 200, done.text
    shared.admin("POST", "/destroy_weights_update_group", json={})
    return shared


@pytest.fixture
def trainers() -> Iterator[list[Trainer]]:
    made: list[Trainer] = []
    yield made
    for trainer in made:
        trainer.close()


def init(engine: EngineProcess, port: int, **more: Any) -> httpx.Response:
    body = {
        "master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": 3,
        "backend": "gloo", "timeout": 120, **more,
    }  # fmt: skip
    return engine.admin("POST", "/init_weights_update_group", json=body)


def joined(engine: EngineProcess, trainers: list[Trainer], plan: str, seed: int = 1) -> Trainer:
    trainer = Trainer(plan, seed)
    trainers.append(trainer)
    answer = init(engine, trainer.port)
    assert answer.status_code == 200, answer.text
    assert answer.json()["message"] == "Succeeded to initialize custom process group."
    trainer.until("joined")
    return trainer


def update(engine: EngineProcess, **more: Any) -> httpx.Response:
    body = {**LISTS, "receive_timeout": 120, **more}
    return engine.admin("POST", "/update_weights_from_distributed", json=body)


def checksum(engine: EngineProcess) -> str:
    answer = engine.admin("GET", "/weights_checker")
    assert answer.status_code == 200, answer.text
    return str(answer.json()["desired_checksum"])


@pytest.fixture(scope="module")
def other(shared: EngineProcess) -> dict[str, Any]:
    """Checksum and words of the weights that trainers send, loaded from disk."""
    folder = shared.admin("GET", "/server_info").json()["weights_roots"][0] + "/other"
    shared.until_serving()
    answer = shared.admin("POST", "/update_weights_from_disk", json={"model_path": folder})
    assert answer.status_code == 200, answer.text
    return {"checksum": checksum(shared), "ids": words(shared)}


def words(engine: EngineProcess) -> list[list[int]]:
    return [
        engine.generate(PROMPT, 12, routed_dp_rank=rank, sampling={"ignore_eos": True}).json()[
            "output_ids"
        ]
        for rank in (0, 1)
    ]


def test_a_trainer_updates_both_ranks(
    other: dict[str, Any], engine: EngineProcess, trainers: list[Trainer]
) -> None:
    trainer = joined(engine, trainers, "all")
    answer = update(engine, weight_version="step-1")
    assert answer.status_code == 200, answer.text
    assert answer.json()["message"] == (
        "Succeeded to update parameter online. Weight version updated to step-1."
    )
    trainer.until("sent")
    assert checksum(engine) == other["checksum"]
    assert words(engine) == other["ids"]
    assert engine.client.get("/model_info").json()["weights"]["source"] == "distributed"
    again = init(engine, trainer.port)  # joining twice
    assert again.status_code == 400 and "exists; destroy it first" in again.json()["message"]
    gone = engine.admin("POST", "/destroy_weights_update_group", json={})
    assert gone.json() == {
        "success": True, "message": "Succeeded to destroy custom process group.",
    }  # fmt: skip
    assert engine.admin("POST", "/destroy_weights_update_group", json={}).status_code == 400


@pytest.mark.parametrize("size", [1000, 5])
def test_a_flattened_bucket_and_several_of_them(
    other: dict[str, Any], engine: EngineProcess, trainers: list[Trainer], size: int
) -> None:
    trainer = joined(engine, trainers, f"flat:{size}")
    assert engine.admin("POST", "/begin_weight_update", json={}).status_code == 200
    for first in range(0, len(NAMES), size):
        trainer.say()
        part = {name: values[first : first + size] for name, values in LISTS.items()}
        answer = update(engine, **part, load_format="flattened_bucket")
        assert answer.status_code == 200, answer.text
    ended = engine.admin("POST", "/end_weight_update", json={"weight_version": "b"})
    assert ended.status_code == 200, ended.text
    assert ended.json()["tensors_received"] == len(NAMES)
    assert checksum(engine) == other["checksum"] and words(engine) == other["ids"]


def test_pushed_weights_outlive_the_rank_that_received_them(
    other: dict[str, Any], engine: EngineProcess, trainers: list[Trainer]
) -> None:
    joined(engine, trainers, "all")
    assert update(engine).status_code == 200
    for rank in (0, 1):
        engine.kill_rank(rank)
        engine.until_serving()
    assert checksum(engine) == other["checksum"] and words(engine) == other["ids"]


@pytest.mark.parametrize(
    "plan", ["die:0", pytest.param("die:4", marks=pytest.mark.slow), "stop:3", "wide"]
)
def test_a_trainer_that_dies_or_sends_too_little_changes_nothing(
    other: dict[str, Any], engine: EngineProcess, trainers: list[Trainer], plan: str
) -> None:
    before, said = checksum(engine), words(engine)
    ranks = engine.pids("rank 0") + engine.pids("rank 1")
    trainer = joined(engine, trainers, plan)
    work = engine.busy(150)
    if plan.startswith("die"):
        trainer.say()
    answer = update(engine, receive_timeout=3, mode="drain", timeout=120)
    assert answer.status_code == 400 and "did not come" in answer.json()["message"]
    assert len(work.result()["output_ids"]) == 150  # it served on meanwhile
    assert checksum(engine) == before and words(engine) == said
    assert engine.pids("rank 0") + engine.pids("rank 1") == ranks  # whatever came, no rank ended
    gone = update(engine)
    assert gone.status_code == 400 and "no group" in gone.text
    if plan == "die:0":  # and nothing is in the way of the next one
        trainers[-1].close()
        joined(engine, trainers, "all")
        assert update(engine).status_code == 200
        assert checksum(engine) == other["checksum"]


def test_a_trainer_that_never_comes_is_waited_for_only_so_long(
    engine: EngineProcess, trainers: list[Trainer]
) -> None:
    """Where SGLang's scheduler stays blocked: here it serves, and answers in time."""
    waiting = Background(lambda: init(engine, free_port(), timeout=2.0))
    time.sleep(0.3)
    assert len(words(engine)[0]) == 12
    answer = waiting.result()
    assert answer.status_code == 400
    assert "rank 0: could not join" in answer.json()["message"]
    joined(engine, trainers, "all")


def test_a_trainer_that_joins_alone_with_one_rank_too_few(engine: EngineProcess) -> None:
    answer = init(engine, free_port(), world_size=2)
    assert answer.status_code == 400 and "do not fit a world of 2" in answer.json()["message"]


def test_what_cannot_work_is_refused_before_anything_is_waited_for(
    engine: EngineProcess, trainers: list[Trainer]
) -> None:
    """W13."""

    def refused(answer: httpx.Response, word: str) -> None:
        assert answer.status_code == 400 and word in answer.text, answer.text

    refused(update(engine), "no group 'weight_update_group'")
    refused(init(engine, 1, backend="zork"), "backend")
    refused(init(engine, 1, backend="nccl"), "use gloo")
    joined(engine, trainers, "wait")
    refused(update(engine, group_name="zork"), "no group 'zork'")
    refused(update(engine, dtypes=["bfloat16"]), "do not belong together")
    unknown = {**LISTS, "names": ["zork", *NAMES[1:]]}
    refused(update(engine, **unknown), "tensor zork")
    shapes = [[1], *LISTS["shapes"][1:]]
    refused(update(engine, shapes=shapes), "expected")
    part = {name: values[:3] for name, values in LISTS.items()}
    refused(update(engine, **part), "is missing")
    trainers[-1].say()
    assert update(engine).status_code == 200  # the group was never touched


def test_a_rank_that_dies_takes_the_group_with_it(
    engine: EngineProcess, trainers: list[Trainer]
) -> None:
    joined(engine, trainers, "wait")
    engine.kill_rank(1)
    engine.until_serving()
    answer = update(engine)
    assert answer.status_code == 400 and "no group" in answer.text

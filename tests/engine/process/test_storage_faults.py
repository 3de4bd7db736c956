"""Stores that die, fill up and come back under a serving engine: the same answers as without one,
the breaker's state to be seen, and no restart needed."""

from __future__ import annotations

import importlib.util
import os
import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engine.cache.storage.bed import ServedBed
from tests.engine.cache.storage.beds_native import MooncakeBed, NixlObjectsBed
from tests.engine.cache.storage.beds_own import ValkeyBed
from tests.engine.process.storage_client import (
    attach,
    detach,
    flush,
    generate,
    status,
    tiers,
    until_idle,
)
from tests.engine.weights.checkpoints import write
from tests.fakes.engine_process import EngineProcess
from tests.fakes.tiny_disk import tiny_disk
from tests.fakes.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.process

_rng = random.Random(5)
PREFIXES = [[_rng.randrange(40_000) for _ in range(160)] for _ in range(4)]
PROMPTS = [
    [*PREFIXES[i % 4][: 32 + 16 * (i % 9)], *(_rng.randrange(40_000) for _ in range(8))]
    for i in range(24)
]
Answers = list[list[int]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path) -> Path:
    return write(tmp_path_factory.mktemp("model") / "base", 0, smollm2_dir)


def start(model: Path, kernels: Path) -> EngineProcess:
    engine = EngineProcess(model, kernels, max_total_tokens=2048, context_length=1024)
    engine.command.append("--enable-hierarchical-cache")
    return engine.start()


@pytest.fixture(scope="module")
def engine(model: Path, cpu_ext_dir: Path) -> Iterator[EngineProcess]:
    engine = start(model, cpu_ext_dir)
    try:
        yield engine
    finally:
        engine.stop()


@pytest.fixture(scope="module")
def cacheless(engine: EngineProcess) -> Answers:
    """What the engine says when nothing is cached anywhere."""
    answers = []
    for prompt in PROMPTS:
        until_idle(engine)
        flush(engine)
        answers.append(generate(engine, prompt)["output_ids"])
    return answers


def answers_of(engine: EngineProcess) -> Answers:
    return [generate(engine, prompt)["output_ids"] for prompt in PROMPTS]


class Load:
    """All prompts again and again, by two clients; `check` compares every answer."""

    def __init__(self, engine: EngineProcess, cacheless: Answers) -> None:
        self.engine, self.cacheless = engine, cacheless
        self.wrong: list[str] = []
        self.count = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in (0, 1)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _run(self, first: int) -> None:
        index = first
        while not self._stop.is_set():
            number = index % len(PROMPTS)
            try:
                answer = generate(self.engine, PROMPTS[number])["output_ids"]
            except Exception as error:  # noqa: BLE001 - a client that fails is what is looked for
                self.wrong.append(repr(error))
                return
            if answer != self.cacheless[number]:
                self.wrong.append(f"prompt {number}: {answer}")
            self.count += 1
            index += 1

    def until(self, happens: Any) -> None:
        wait_until(happens)
        assert self.wrong == []


def health(engine: EngineProcess) -> set[str]:
    return {rank["health"] for rank in status(engine)["ranks"]}


def valkey_config(bed: ServedBed) -> dict[str, Any]:
    return {"url": f"valkey://127.0.0.1:{bed.port}/0"}


def mooncake_config(bed: ServedBed) -> dict[str, Any]:
    return {
        "master_server_address": f"127.0.0.1:{bed.port}",
        "global_segment_size": 64 << 20,
    }


def objects_config(bed: ServedBed) -> dict[str, Any]:
    return {
        "plugin": "OBJ",
        "bucket": NixlObjectsBed.bucket,
        "endpoint_override": f"http://127.0.0.1:{bed.port}",
        "access_key": "access",
        "secret_key": "secret-of-the-test",
    }


STORES = {
    "valkey": (ValkeyBed, valkey_config),
    "mooncake": (MooncakeBed, mooncake_config),
    "nixl": (NixlObjectsBed, objects_config),
}


@contextmanager
def running(kind: type[ServedBed], folder: Path) -> Iterator[ServedBed]:
    bed = kind(folder)
    try:
        bed.start()
        yield bed
    finally:
        bed.stop()
        if isinstance(bed, NixlObjectsBed):
            bed.end()


@pytest.mark.parametrize(
    "name",
    ["valkey", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mooncake", "nixl"))],
)
def test_a_store_that_dies_and_comes_back_costs_hits_only(
    engine: EngineProcess, cacheless: Answers, short_dir: Path, name: str
) -> None:
    kind, config = STORES[name]
    if kind.needs and importlib.util.find_spec(kind.needs) is None:
        pytest.skip(f"the optional package {kind.needs} is not installed")
    with running(kind, short_dir) as bed:
        settings = {"prefetch_threshold": 16, "io_timeout": 2, **config(bed)}
        done = attach(engine, name, settings)
        assert done.status_code == 200, done.text
        assert answers_of(engine) == cacheless
        until_idle(engine)
        flush(engine)
        warm = generate(engine, PROMPTS[8])
        assert tiers(warm)[2] >= 128 and warm["output_ids"] == cacheless[8]
        with Load(engine, cacheless) as load:
            bed.kill()

            def is_noticed() -> bool:
                _forget(engine)
                return bool(health(engine) - {"closed"})

            load.until(is_noticed)
            assert any(r["storage"]["last_error"] for r in status(engine)["ranks"])
            bed.start()

            def is_back() -> bool:
                _forget(engine)
                return health(engine) == {"closed"}

            load.until(is_back)
        assert load.wrong == [] and load.count > 0
        assert answers_of(engine) == cacheless
        until_idle(engine)
        flush(engine)
        assert answers_of(engine) == cacheless
        assert sum(tiers(generate(engine, prompt))[2] for prompt in PROMPTS) >= 0
        assert detach(engine, mode="abort").status_code == 200


def _forget(engine: EngineProcess) -> None:
    """Empty L1 and L2, so that requests look into storage; a busy engine is left alone."""
    engine.client.post("/flush_cache", headers=_admin(), params={"mode": "retract", "timeout": 5})
    time.sleep(0.3)


def _admin() -> dict[str, str]:
    from tests.engine.process.storage_client import ADMIN

    return ADMIN


def _fill(folder: Path) -> None:
    """Take what room is left, to the last page; then what the engine had taken ahead."""
    for number in range(64):
        try:
            (folder / f"ballast{number}").write_bytes(b"x" * (64 << 10))
        except OSError:
            return


def test_a_disk_of_2_mb_that_fills_up(engine: EngineProcess, cacheless: Answers) -> None:  # H07
    until_idle(engine)
    flush(engine)
    folder = engine.dir / "disk"
    settings = {
        "prefetch_threshold": 16,
        "min_free_space": 0,
        "file_storage_path": str(folder),
    }
    with tiny_disk(folder, 2 << 20):
        _fill(folder)
        full = attach(engine, "file", settings)
        assert full.status_code == 400 and "rank 0: " in full.text, full.text
        assert re.search("is full|No space left", full.text), full.text
        (folder / "ballast0").unlink()
        (folder / "ballast1").unlink()
        done = attach(engine, "file", settings)
        assert done.status_code == 200, done.text
        _fill(folder)
        assert answers_of(engine) == cacheless
        until_idle(engine)
        ranks = [rank["storage"] for rank in status(engine)["ranks"]]
        # What does not fit takes the room of own older pages, or is dropped.
        assert sum(rank["written_pages"] + rank["dropped_pages"] for rank in ranks) > 24
        assert all(rank["stored_pages"] < 120 for rank in ranks)
        assert {rank["breaker"] for rank in ranks} == {"closed"}
        for path in folder.glob("ballast*"):
            path.unlink()
        for name in [path.name for path in folder.rglob("*") if path.is_file()]:
            assert name.endswith(".seg") or name == "LOCK", name
        engine.restart()
        assert answers_of(engine) == cacheless
        until_idle(engine)
        flush(engine)
        assert answers_of(engine) == cacheless
        assert detach(engine).status_code == 200


def test_an_engine_killed_while_it_writes_segments(
    engine: EngineProcess, cacheless: Answers
) -> None:
    settings = {"prefetch_threshold": 16, "segment_size": 1 << 20}
    until_idle(engine)
    flush(engine)
    assert attach(engine, "file", settings).status_code == 200
    for pause_s in (0.05, 0.4):
        with Load(engine, cacheless) as load:
            time.sleep(pause_s)
            for rank in (0, 1):
                engine.kill(f"rank {rank}")
        assert not [text for text in load.wrong if text.startswith("prompt")]
        engine.until_serving()
        wait_until(lambda: all(rank["attached"] for rank in status(engine)["ranks"]))
    assert engine.process is not None
    os.killpg(engine.process.pid, signal.SIGKILL)
    engine.process.wait()
    engine.start()
    assert answers_of(engine) == cacheless
    until_idle(engine)
    flush(engine)
    again = [generate(engine, prompt) for prompt in PROMPTS]
    assert [reply["output_ids"] for reply in again] == cacheless
    assert sum(tiers(reply)[2] for reply in again) > 0
    assert status(engine)["ranks"][0]["storage"]["corrupt_pages"] == 0
    assert detach(engine).status_code == 200

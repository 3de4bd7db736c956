"""The console's processes and two real engines, each of two ranks, with a little traffic.

Everything is as `bin/run` has it, but that a small random model makes jobs quick. What was killed
is started again by `Chaos.revive`, as `bin/run`'s supervisor would; a frontend and a rank are
started again by the engine's own `launch`.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from tests.engine.demo.tiny_model import write_tiny_model
from tests.fakes import plain_http
from tests.fakes.engine_process import EngineProcess
from tests.fakes.stack import ROOT, Stack

PARTS = ("valkey", "web", "worker", "relay", "reconcile")
DP_SIZE = 2
KERNELS = ROOT / "var" / "test-cache" / "ext"
_TRAFFIC_TIMEOUT_S = 20.0


@dataclass
class Engine:
    """One engine under its name in the console."""

    name: str
    process: EngineProcess

    @property
    def effect_log(self) -> Path:
        """Where its ranks note what they did."""
        return self.process.dir / "effects.jsonl"

    @property
    def control_address(self) -> str:
        return f"ipc://{self.process.dir}/run/control.sock"

    @property
    def events_address(self) -> str:
        return f"ipc://{self.process.dir}/run/events.sock"

    def pid(self, child: str) -> int | None:
        """The frontend or a rank, if it lives."""
        pid = self.process.pids(child)[-1]
        try:
            is_dead = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return None
        return None if is_dead else pid


class Traffic:
    """One client of an engine, so that jobs find it busy now and then."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self._base, self._rng = engine.process.base, random.Random(seed)
        self.answered = self.failed = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            prompt = f"Story {self._rng.randrange(20)}: " + "once upon a time " * 4
            new_tokens = self._rng.choice((4, 64, 200, 400))
            sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
            try:
                answer = plain_http.post(
                    f"{self._base}/generate",
                    json={"text": prompt, "sampling_params": sampling},
                    timeout=_TRAFFIC_TIMEOUT_S,
                )
            except httpx.TransportError:  # its frontend was killed, or the engine is paused
                self.failed += 1
            else:
                self.answered += answer.status_code == 200
                self.failed += answer.status_code != 200
            self._is_over.wait(self._rng.uniform(0, 0.1))

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()


class Chaos:
    """All processes of a run."""

    def __init__(self, stack: Stack, engines: list[Engine], models: Path) -> None:
        self.stack, self.engines, self.models = stack, engines, models
        self.revived: Counter[str] = Counter()  # what ended without being killed by us

    def revive(self) -> None:
        """Start what has ended by itself. Only from the main thread: a part ends with its maker."""
        for part in PARTS:
            process = self.stack.parts.get(part)
            if process is None or process.poll() is not None:
                self.revived[part] += 1
                self.stack.kill(part)  # its children, if it left any
                self.stack.start(part)
        for engine in self.engines:
            assert engine.process.process is not None
            if engine.process.process.poll() is not None:
                self.revived["engine"] += 1
                engine.process.start(is_awaited=False)


@contextlib.contextmanager
def chaos(*, database_url: str = "", num_engines: int = 2) -> Iterator[Chaos]:
    """All of it, running and registered; removed at the end."""
    models = Path(tempfile.mkdtemp(prefix="qm-"))
    stack = Stack(database_url=database_url, workers=2 * num_engines)
    engines: list[Engine] = []
    try:
        for seed, name in enumerate(("one", "two")):
            write_tiny_model(models / name, seed)
        for number in range(num_engines):
            engines.append(_engine(f"engine-{number}", models))
        stack.up()
        for engine in engines:
            engine.process.until_serving()
            stack.register(engine)  # type: ignore[arg-type]  # it has the fields that are read
        yield Chaos(stack, engines, models)
    finally:
        stack.down()
        for engine in engines:
            engine.process.stop()
            shutil.rmtree(engine.process.dir, ignore_errors=True)
        shutil.rmtree(models, ignore_errors=True)


def _engine(name: str, models: Path) -> Engine:
    process = EngineProcess(
        models / "one",
        KERNELS,
        dp_size=DP_SIZE,
        max_total_tokens=4096,
        context_length=512,
        hicache_size=0.02,
        weights_root=models,
    )
    engine = Engine(name, process)
    process.command += ["--enable-hierarchical-cache", "--effect-log", str(engine.effect_log)]
    process.start(is_awaited=False)
    return engine


def now() -> float:
    """The clock that faults and ends are noted by."""
    return time.monotonic()

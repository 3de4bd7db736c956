"""What clients that decode notice of operations: a flush, an attach with its detach and a weight
update, one after another every ten seconds, beside the same time without any.

    .venv/bin/python tests/bench/operations_load.py [--write] [--reps 3]

SmolLM2 in bfloat16 on two ranks, eight streaming clients, mode `retract`. Outside the pauses no
token may be lost to an operation; a pause is what the engine tells of it, and what a client waits
across one is counted apart.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # not this folder: here `engine` would be another bench

from tests.bench.figures import CACHE, machine, percentile, spread, write  # noqa: E402
from tests.bench.weights import CLIENTS, Clients, make_folders  # noqa: E402
from tests.engine.process.storage_client import ROUTE  # noqa: E402
from tests.fakes.engine_process import EngineProcess  # noqa: E402

EVERY_S = 10.0
NAMES = ("flush", "attach and detach", "weight update")
_RETRACT = {"mode": "retract", "timeout": 60}


@dataclass
class Pause:
    """From the first held request to the recorded end, by `time.perf_counter`."""

    start: float
    end: float


@dataclass
class Window:
    """What all clients saw of one stretch of time."""

    tokens_per_s: float  # outside the pauses
    gaps_s: list[float]  # of clients, but across pauses
    pause_s: dict[str, float] = field(default_factory=dict)
    across_s: list[float] = field(default_factory=list)  # a client's wait across a pause


class Operations:
    """The three, each by name; to and fro between two checkpoints."""

    def __init__(self, engine: EngineProcess, folders: list[Path]) -> None:
        self._engine, self._folders, self._turn = engine, folders, 0
        self._calls: dict[str, list[Callable[[], httpx.Response]]] = {
            "flush": [lambda: self._ask("POST", "/flush_cache", params=_RETRACT)],
            "attach and detach": [self._attach, self._detach],
            "weight update": [self._update],
        }

    async def run(self, name: str) -> list[Pause]:
        """Carry it out. Raises AssertionError unless every rank did it."""
        pauses = []
        for call in self._calls[name]:
            answer = await asyncio.to_thread(call)
            end = time.perf_counter()
            assert answer.status_code == 200, answer.text
            paused_s = answer.json()["pause_s"] or 0.0  # an attach holds nobody up
            pauses.append(Pause(end - paused_s, end))
        return pauses

    def _attach(self) -> httpx.Response:
        body = {"hicache_storage_backend": "file", **_RETRACT}
        return self._ask("PUT", ROUTE, json=body)

    def _detach(self) -> httpx.Response:
        return self._ask("DELETE", ROUTE, params=_RETRACT)

    def _update(self) -> httpx.Response:
        self._turn += 1
        body = {"model_path": str(self._folders[self._turn % 2]), **_RETRACT}
        return self._ask("POST", "/update_weights_from_disk", json=body)

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._engine.admin(method, path, headers={"Accept": "application/json"}, **options)


async def window(clients: Clients, operations: Operations | None) -> Window:
    """Thirty seconds, with the three operations or with none."""
    start = time.perf_counter()
    pauses: dict[str, list[Pause]] = {}
    for number, name in enumerate(NAMES):
        if operations is not None:
            pauses[name] = await operations.run(name)
        await asyncio.sleep(start + (number + 1) * EVERY_S - time.perf_counter())
    end = time.perf_counter()
    every = [pause for some in pauses.values() for pause in some]
    paused_s = sum(pause.end - pause.start for pause in every)
    pieces = sum(1 for s in clients.streams for at in s.at if start <= at <= end)
    seen = Window(
        pieces / (end - start - paused_s),
        [],
        {name: sum(p.end - p.start for p in some) for name, some in pauses.items()},
    )
    for stream in clients.streams:
        for earlier, later in zip(stream.at, stream.at[1:], strict=False):
            if later < start or earlier > end:
                continue
            crosses = any(earlier <= pause.end and later >= pause.start for pause in every)
            (seen.across_s if crosses else seen.gaps_s).append(later - earlier)
    return seen


async def measure(
    engine: EngineProcess, folders: list[Path], reps: int
) -> tuple[list[Window], list[Window]]:
    """Windows without and with, in turns; the first of each warms up."""
    clients, operations = Clients(engine.port), Operations(engine, folders)
    await asyncio.sleep(2)
    quiet, busy = [], []
    for _ in range(reps + 1):
        quiet.append(await window(clients, None))
        busy.append(await window(clients, operations))
    await clients.end()
    return quiet[1:], busy[1:]


def report(before: str, quiet: list[Window], busy: list[Window]) -> str:
    """The table."""
    rates = [[w.tokens_per_s for w in some] for some in (quiet, busy)]
    p99 = [[percentile(w.gaps_s, 0.99) * 1e3 for w in some] for some in (quiet, busy)]
    lost = 1 - statistics.median(rates[1]) / statistics.median(rates[0])
    more = statistics.median(p99[1]) - statistics.median(p99[0])
    lines = [
        f"{before} before; bfloat16, SmolLM2-135M, 2 ranks, {CLIENTS} streaming clients; medians "
        f"of {len(quiet)} windows of {EVERY_S * len(NAMES):g} s (min–max).",
        "",
        "| clients | without operations | with | difference |",
        "| --- | --- | --- | --- |",
        f"| pieces/s outside pauses | {spread(rates[0])} | {spread(rates[1])} | {-lost:+.1%} |",
        f"| p99 wait for a piece, ms | {spread(p99[0])} | {spread(p99[1])} | {more:+.1f} ms |",
        "",
        "| operation | pause, ms |",
        "| --- | --- |",
    ]
    for name in NAMES:
        lines.append(f"| {name} | {spread([w.pause_s[name] * 1e3 for w in busy])} |")
    across = [wait * 1e3 for w in busy for wait in w.across_s]
    lines += ["", f"A client's wait across a pause: {spread(across)} ms, its new prefill included."]
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    args = parser.parse_args()
    before = machine()
    (ROOT / "var").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="operations-", dir=ROOT / "var") as root:
        folders = make_folders(Path(root))
        engine = EngineProcess(folders[0], CACHE / "ext", dtype="bfloat16", max_total_tokens=32_768)
        engine.command.append("--enable-hierarchical-cache")
        try:
            engine.start()
            quiet, busy = asyncio.run(measure(engine, folders, args.reps))
        finally:
            engine.stop()
    text = report(before, quiet, busy)
    print(text)
    if args.write:
        write("operations", text)


if __name__ == "__main__":
    main()

"""What a generated token costs beside the model's arithmetic, in µs of CPU time; by path.

    .venv/bin/python tests/bench/token_cost.py [--write]

The rank: a scheduler over the real runner, its kernels' own time taken off. The frontend: CPU time
of its process over the tokens that it passed on, whole and streamed. CPU time, so that a busy
machine falsifies little.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # not this folder: here `engine` would be another bench

from engine.ipc.messages import Generate, Tokens  # noqa: E402
from engine.ipc.sampling import SamplingParams  # noqa: E402
from engine.ipc.wire import encode  # noqa: E402
from engine.models.gguf import convert, find_packaged_gguf  # noqa: E402
from engine.runner.model_runner import ModelRunner  # noqa: E402
from engine.scheduler.scheduler import Scheduler  # noqa: E402
from tests.bench.figures import CACHE, machine, write  # noqa: E402
from tests.fakes.engine_process import EngineProcess  # noqa: E402

_P, _R = ParamSpec("_P"), TypeVar("_R")
BATCHES = (1, 8, 32)
NEW_TOKENS = 128


class Kernels:
    """A model whose own time is kept apart."""

    def __init__(self, runner: ModelRunner) -> None:
        self.seconds = 0.0
        model = runner._model
        for name in ("greedy", "hidden", "logits"):
            setattr(model, name, self._timed(getattr(model, name)))

    def _timed(self, method: Callable[_P, _R]) -> Callable[_P, _R]:
        def timed(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            start = time.thread_time()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - start

        return timed


def rank_cost(batch: int, sampling: SamplingParams, *, is_streamed: bool) -> float:
    """µs a token of one rank's decode steps, scheduler, runner and encoding together."""
    runner = ModelRunner(
        CACHE / "smollm2", num_pages=2048, threads=1, ext_dir=CACHE / "ext", seed=1
    )
    kernels = Kernels(runner)
    scheduler = Scheduler(runner)
    for number in range(batch):
        prompt = [1000 + number * 40 + index for index in range(16)]
        scheduler.add(
            Generate(
                epoch=1, inc=1, rid=str(number), input_ids=prompt, sampling=sampling,
                is_streamed=is_streamed,
            ),
            0.0,
        )  # fmt: skip
    scheduler.step(0.0)
    kernels.seconds, tokens, start = 0.0, 0, time.thread_time()
    while scheduler.running:
        scheduler.step(0.0)
        tokens += batch
        items, scheduler.outputs = scheduler.outputs, []
        if items:
            encode(Tokens(rank=0, inc=1, epoch=1, n=1, items=items))
        scheduler.places()
    return (time.thread_time() - start - kernels.seconds) / tokens * 1e6


def frontend_cost(engine: EngineProcess, batch: int, *, is_streamed: bool) -> float:
    """µs a token of the frontend's process."""

    async def all_at_once() -> None:
        async with httpx.AsyncClient(timeout=300) as client:
            await asyncio.gather(*(one(client, number) for number in range(batch)))

    async def one(client: httpx.AsyncClient, number: int) -> None:
        body = {
            "input_ids": [1000 + number * 40 + index for index in range(16)],
            "sampling_params": {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True},
            "stream": is_streamed,
        }
        async with client.stream("POST", f"{engine.base}/generate", json=body) as answer:
            assert answer.status_code == 200
            async for _ in answer.aiter_bytes():
                pass

    pid = engine.pids("frontend")[-1]
    asyncio.run(all_at_once())
    before = _cpu_s(pid)
    for _ in range(3):
        asyncio.run(all_at_once())
    return (_cpu_s(pid) - before) / (3 * batch * NEW_TOKENS) * 1e6


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    args = parser.parse_args()
    gguf = find_packaged_gguf()
    assert gguf is not None
    convert(gguf, CACHE / "smollm2", lambda phrase, share: None)
    greedy = SamplingParams(temperature=0.0, max_new_tokens=NEW_TOKENS, ignore_eos=True)
    drawn = SamplingParams(temperature=1.0, top_p=0.9, max_new_tokens=NEW_TOKENS, ignore_eos=True)

    def ranks(sampling: SamplingParams, is_streamed: bool) -> list[float]:
        return [
            statistics.median(rank_cost(b, sampling, is_streamed=is_streamed) for _ in range(3))
            for b in BATCHES
        ]

    rows = {
        "rank, greedy, whole": ranks(greedy, False),
        "rank, greedy, streamed": ranks(greedy, True),
        "rank, top_p 0.9, streamed": ranks(drawn, True),
    }
    engine = EngineProcess(
        CACHE / "smollm2", CACHE / "ext", dtype="bfloat16", dp_size=1, max_total_tokens=65536
    ).start()
    try:
        for name, is_streamed in (("whole", False), ("streamed", True)):
            rows[f"frontend, {name}"] = [
                frontend_cost(engine, batch, is_streamed=is_streamed) for batch in BATCHES
            ]
    finally:
        engine.stop()
    lines = [machine(), "", "| µs a token | " + " | ".join(f"b{b}" for b in BATCHES) + " |"]
    lines += ["| --- |" + " --- |" * len(BATCHES)]
    lines += [
        f"| {name} | " + " | ".join(f"{x:.0f}" for x in row) + " |" for name, row in rows.items()
    ]
    text = "\n".join(lines)
    print(text)
    if args.write:
        write("token cost", text)


if __name__ == "__main__":
    main()

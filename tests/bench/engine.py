"""The engine over HTTP beside transformers, in one run: prefill, first token, decode.

    .venv/bin/python tests/bench/engine.py [--write] [--reps 5]

Needs transformers (`bin/test --full` installs it). The two take turns at each row; ratios are of
medians. Ours includes HTTP, tokens to text, scheduler and process hops; theirs is the bare model.
Figures count only from a quiet machine: the load average is printed before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # not this folder: here `engine` would be this very file

from engine.models.gguf import convert, find_packaged_gguf  # noqa: E402
from tests.fakes.engine_process import EngineProcess  # noqa: E402

CACHE = ROOT / "var" / "test-cache"
NEW_TOKENS = 64
RNG = random.Random(1)


def prompt(length: int) -> list[int]:
    """Random tokens: nothing is cached by accident."""
    return [RNG.randrange(1000, 40_000) for _ in range(length)]


class Ours:
    """The real engine, one rank on all cores."""

    def __init__(self, folder: Path, dtype: str, threads: int) -> None:
        self.engine = EngineProcess(
            folder, CACHE / "ext", dtype=dtype, dp_size=1, threads=threads, max_total_tokens=65536
        )
        self.engine.start()

    def first_token(self, ids: list[int]) -> float:
        start = time.perf_counter()
        self.engine.generate(ids, 1)
        return time.perf_counter() - start

    def first_token_hit(self, prefix: list[int], rest: list[int]) -> float:
        self.engine.generate(prefix, 1)
        start = time.perf_counter()
        answer = self.engine.generate(prefix + rest, 1)
        took = time.perf_counter() - start
        assert answer.json()["meta_info"]["cached_tokens"] >= len(prefix) - 16
        return took

    def decode(self, prompts: list[list[int]], count: int) -> float:
        return self._all(prompts, count + 1) - self._all([[*p[:-1], 7] for p in prompts], 1)

    def _all(self, prompts: list[list[int]], count: int) -> float:
        """Seconds for all prompts at once; one call a prompt, as clients make them."""

        async def run() -> float:
            limits = httpx.Limits(max_connections=100)
            async with httpx.AsyncClient(timeout=120, limits=limits) as client:
                start = time.perf_counter()
                answers = await asyncio.gather(
                    *(
                        client.post(
                            f"{self.engine.base}/generate",
                            json={
                                "input_ids": ids,
                                "sampling_params": {
                                    "max_new_tokens": count,
                                    "temperature": 0,
                                    "ignore_eos": True,
                                },
                            },
                        )
                        for ids in prompts
                    )
                )
                took = time.perf_counter() - start
            assert all(len(a.json()["output_ids"]) == count for a in answers)
            return took

        return asyncio.run(run())

    def stop(self) -> None:
        self.engine.stop()


class Theirs:
    """transformers, in its own process."""

    def __init__(self, folder: Path, dtype: str, threads: int) -> None:
        script = Path(__file__).with_name("peer_transformers.py")
        python = os.environ.get("QUIESCE_PEER_PYTHON", sys.executable)
        self._process = subprocess.Popen(
            [python, str(script), str(folder), dtype, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._read()["ready"]

    def _read(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "transformers did not start: bin/test --full installs it"
        return dict(json.loads(line))

    def _ask(self, **request: object) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        seconds = self._read()["seconds"]
        assert isinstance(seconds, float)
        return seconds

    def first_token(self, ids: list[int]) -> float:
        return self._ask(row="first_token", ids=ids)

    def first_token_hit(self, prefix: list[int], rest: list[int]) -> float:
        return self._ask(row="first_token_hit", prefix=prefix, rest=rest)

    def decode(self, prompts: list[list[int]], count: int) -> float:
        return self._ask(row="decode", prompts=prompts, count=count)

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


@dataclass
class Row:
    """One line of the table; seconds of both, in turns."""

    name: str
    unit: str
    per_second: float  # tokens a run stands for; 0 for a row of milliseconds
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    def shown(self, seconds: list[float]) -> str:
        middle = statistics.median(seconds)
        if not self.per_second:
            return f"{middle * 1000:.1f} ({min(seconds) * 1000:.1f}–{max(seconds) * 1000:.1f})"
        rates = sorted(self.per_second / second for second in seconds)
        return f"{self.per_second / middle:.0f} ({rates[0]:.0f}–{rates[-1]:.0f})"

    @property
    def ratio(self) -> float:
        """How many times faster ours is."""
        return statistics.median(self.theirs) / statistics.median(self.ours)


def measure(ours: Ours, theirs: Theirs, reps: int) -> list[Row]:
    """Every row, both engines in turns; the first turn of each row warms up."""

    def hit(side: Ours | Theirs) -> float:
        return side.first_token_hit(prompt(512), prompt(8))

    def decode(batch: int) -> Callable[[Ours | Theirs], float]:
        return lambda side: side.decode([prompt(16) for _ in range(batch)], NEW_TOKENS)

    plan: list[tuple[Row, Callable[[Ours | Theirs], float]]] = [
        (Row("prefill 512", "tok/s", 512), lambda side: side.first_token(prompt(512))),
        (Row("first token, cold, 512", "ms", 0), lambda side: side.first_token(prompt(512))),
        (Row("first token, hit 512 + 8", "ms", 0), hit),
    ]
    plan += [
        (Row(f"decode b{batch}", "tok/s", batch * NEW_TOKENS), decode(batch))
        for batch in (1, 8, 32)
    ]
    for row, run in plan:
        for turn in range(reps + 1):
            mine, peer = run(ours), run(theirs)
            if turn:
                row.ours.append(mine)
                row.theirs.append(peer)
    return [row for row, _ in plan]


def cpu_name() -> str:
    """Of this machine, for people."""
    return next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )


def report(rows: list[Row], dtype: str, threads: int, before: float, reps: int) -> str:
    """The table, with what it was measured on."""
    after = os.getloadavg()[0]
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, {cpu_name()}, {threads} threads, {dtype}, SmolLM2-135M, "
        f"one rank; medians of {reps} turns (min–max); load {before:.1f} before, {after:.1f} "
        "after. Ours over HTTP, transformers 5.24 in process.",
        "",
        "| row | unit | Quiesce | transformers | ratio |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row.name} | {row.unit} | {row.shown(row.ours)} | {row.shown(row.theirs)} | "
        f"{row.ratio:.2f}× |"
        for row in rows
    ]
    cold, warm = (statistics.median(rows[index].ours) for index in (1, 2))
    lines += ["", f"A hit's first token takes {warm / cold:.2f} of a cold one's."]
    return "\n".join(lines)


def write(section: str, text: str) -> None:
    """Replace one marked section of docs/benchmarks.md."""
    path = ROOT / "docs" / "benchmarks.md"
    begin, end = f"<!-- {section} -->", f"<!-- /{section} -->"
    page = path.read_text()
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    path.write_text(f"{head}{begin}\n{text}\n{end}{tail}")


def main() -> None:
    """Measure, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    args = parser.parse_args()
    gguf = find_packaged_gguf()
    assert gguf is not None
    convert(gguf, CACHE / "smollm2", lambda phrase, share: None)
    before = os.getloadavg()[0]
    ours = Ours(CACHE / "smollm2", args.dtype, args.threads)
    theirs = Theirs(CACHE / "smollm2", args.dtype, args.threads)
    try:
        rows = measure(ours, theirs, args.reps)
    finally:
        ours.stop()
        theirs.stop()
    text = report(rows, args.dtype, args.threads, before, args.reps)
    print(text)
    if args.write:
        write(f"engine {args.dtype}", text)


if __name__ == "__main__":
    main()

"""New weights under load: the pause, the whole update, and what else could be done instead.

    .venv/bin/python tests/bench/weights.py [--write] [--reps 5]

SmolLM2 in bfloat16 on two ranks, eight clients that stream without end, updates by `retract`
between the model and a copy of it with a little noise, in turns: from disk, from disk with
`torch_empty_cache`, from tensors in one raw body. In the same run: how fast this machine copies the
weights' bytes, and how long it takes to stop the engine and start it on the other folder (without
load, which is that way's best case). A request that fails, or is cut short, fails the bench.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # not this folder: here `engine` would be the other bench

from engine.models.gguf import convert, find_packaged_gguf  # noqa: E402
from tests.bench.figures import CACHE, cpu_name, spread, write  # noqa: E402
from tests.fakes.engine_process import EngineProcess  # noqa: E402

CLIENTS = 8
PROMPT_TOKENS, NEW_TOKENS = 32, 256
BEFORE_S, AFTER_S = 2.0, 3.0  # of load around an update; afterwards requests catch up
RAW = {"content-type": "application/octet-stream"}
KINDS = ("from disk", "from disk, torch_empty_cache", "from tensors")
RNG = random.Random(1)


# ---- checkpoints -----------------------------------------------------------------------------


def make_folders(root: Path) -> list[Path]:
    """The model, and a second one of its shape that is truly another one."""
    gguf = find_packaged_gguf()
    assert gguf is not None
    convert(gguf, CACHE / "smollm2", lambda phrase, share: None)
    folders = [root / "base", root / "noisy"]
    for folder in folders:
        shutil.copytree(CACHE / "smollm2", folder)
    tensors, noise = load_file(folders[0] / "model.safetensors"), torch.Generator().manual_seed(1)
    for name, tensor in tensors.items():
        factor = 1 + 0.01 * torch.randn(tensor.shape, generator=noise)
        tensors[name] = (tensor.float() * factor).to(tensor.dtype)
    save_file(tensors, folders[1] / "model.safetensors", {"format": "pt"})
    os.sync()  # or the journal's writes would wait for these
    return folders


# ---- load ------------------------------------------------------------------------------------


@dataclass
class Stream:
    """One request: when each piece of its answer came."""

    at: list[float] = field(default_factory=list)
    tail: bytes = b""


class Clients:
    """Streaming clients, each with one request after another. Bytes are timed, not parsed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ends = False
        self.streams: list[Stream] = []
        self._tasks = [asyncio.create_task(self._run()) for _ in range(CLIENTS)]

    async def _run(self) -> None:
        while not self._ends:
            await self._request()

    async def _request(self) -> None:
        body = json.dumps(
            {
                "input_ids": [RNG.randrange(1000, 40_000) for _ in range(PROMPT_TOKENS)],
                "sampling_params": {
                    "max_new_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True,
                },
                "stream": True,
            }
        )  # fmt: skip
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)
        head = "POST /generate HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode())
        stream = Stream()
        self.streams.append(stream)
        assert b" 200 " in await reader.readline()
        while data := await reader.read(1 << 16):
            if b"data: " in data:
                stream.at.append(time.perf_counter())
            stream.tail = (stream.tail + data)[-16_384:]
        writer.close()
        check_whole(stream)

    async def end(self) -> None:
        """Let each client finish its request."""
        self._ends = True
        await asyncio.gather(*self._tasks)

    # ---- what they saw -------------------------------------------------------------------------

    def longest_gap(self, start: float, end: float) -> float:
        """The longest wait of any client for its next token, of waits that touch this time."""
        return max(gap for stream in self.streams for gap in gaps(stream.at, start, end))

    def median_gap(self, start: float, end: float) -> float:
        """The usual wait for the next token."""
        return statistics.median(g for s in self.streams for g in gaps(s.at, start, end))

    def silence(self, start: float, end: float) -> float:
        """The longest time in which no client at all was sent a token."""
        return max(gaps(sorted(at for stream in self.streams for at in stream.at), start, end))


def gaps(at: list[float], start: float, end: float) -> list[float]:
    """Waits between neighbours that touch the time from `start` to `end`."""
    pairs = itertools.pairwise(at)
    return [later - earlier for earlier, later in pairs if later >= start and earlier <= end]


def check_whole(stream: Stream) -> None:
    """It ended because it had all its tokens, and for no other reason."""
    text = stream.tail.decode(errors="replace")
    assert f'"finish_reason":{{"type":"length","length":{NEW_TOKENS}}}' in text, text[-2000:]
    assert "[DONE]" in text


# ---- measures --------------------------------------------------------------------------------


@dataclass
class Update:
    """One update under load, in seconds."""

    pause_s: float  # as the engine tells it
    effect_s: float  # of it, the swap on the slowest rank
    silence_s: float
    gap_s: float
    normal_silence_s: float
    normal_gap_s: float
    usual_gap_s: float
    staged_s: float
    total_s: float


async def update(engine: EngineProcess, clients: Clients, kind: str, folder: Path) -> Update:
    """Replace the weights by those of `folder`, and see what the clients see."""
    send = sender(engine, kind, folder)
    await asyncio.sleep(BEFORE_S)
    start = time.perf_counter()
    answer = await asyncio.to_thread(send)
    total_s = time.perf_counter() - start
    await asyncio.sleep(AFTER_S)
    body = answer.json()
    assert answer.status_code == 200, answer.text
    end = start + total_s + AFTER_S
    return Update(
        pause_s=body["pause_s"],
        effect_s=max(rank["effect_s"] for rank in body["ranks"]),
        silence_s=clients.silence(start, end),
        gap_s=clients.longest_gap(start, end),
        normal_silence_s=clients.silence(start - BEFORE_S, start),
        normal_gap_s=clients.longest_gap(start - BEFORE_S, start),
        usual_gap_s=clients.median_gap(start - BEFORE_S, start),
        staged_s=body["staged_s"],
        total_s=total_s,
    )


def sender(engine: EngineProcess, kind: str, folder: Path) -> Callable[[], httpx.Response]:
    """The request, made ready before the clock starts."""
    options: dict[str, Any] = {"mode": "retract", "timeout": 30}
    if kind == "from tensors":
        content = (folder / "model.safetensors").read_bytes()
        return lambda: engine.admin(
            "POST",
            "/update_weights_from_tensor",
            params=options,
            content=pieces(content),
            headers=RAW | {"content-length": str(len(content))},
        )
    options |= {"model_path": str(folder), "torch_empty_cache": "empty" in kind}
    return lambda: engine.admin("POST", "/update_weights_from_disk", json=options)


def pieces(content: bytes) -> Iterator[bytes]:
    """In small pieces: given all at once, the client library copies the rest at each write, and so
    keeps this process from noting when tokens come."""
    for start in range(0, len(content), 1 << 18):
        yield content[start : start + (1 << 18)]


async def updates(engine: EngineProcess, folders: list[Path], reps: int) -> dict[str, list[Update]]:
    """All kinds in turns, to and fro between the two checkpoints; the first turn warms up."""
    found: dict[str, list[Update]] = {kind: [] for kind in KINDS}
    clients, count = Clients(engine.port), 0
    for turn in range(reps + 1):
        for kind in KINDS:
            count += 1
            one = await update(engine, clients, kind, folders[count % 2])
            if turn:
                found[kind].append(one)
    await clients.end()
    assert len(clients.streams) >= CLIENTS
    checked = await asyncio.to_thread(engine.admin, "GET", "/weights_checker")
    assert checked.status_code == 200, checked.text
    return found


def restart(engine: EngineProcess, folder: Path) -> tuple[EngineProcess, float]:
    """Stop it and start another one on `folder`, until both ranks have answered."""
    start = time.perf_counter()
    engine.stop()
    after = made(folder)
    for rank in (0, 1):
        assert after.generate([1, 2, 3], 1, routed_dp_rank=rank).status_code == 200
    return after, time.perf_counter() - start


def made(folder: Path) -> EngineProcess:
    engine = EngineProcess(folder, CACHE / "ext", dtype="bfloat16", max_total_tokens=32768)
    return engine.start()


def copy_seconds(size_bytes: int, threads: int, reps: int) -> list[float]:
    """How long the machine takes to copy so many bytes, source and target being in memory."""
    torch.set_num_threads(threads)
    source = torch.ones(size_bytes, dtype=torch.uint8)
    target = torch.zeros_like(source)
    took = []
    for turn in range(reps + 1):
        start = time.perf_counter()
        target.copy_(source)
        if turn:
            took.append(time.perf_counter() - start)
    return took


# ---- report ----------------------------------------------------------------------------------


@dataclass
class Results:
    """All of one run."""

    updates: dict[str, list[Update]]
    restarts: list[float]
    copies: dict[int, list[float]]  # by threads
    size_bytes: int


def run(reps: int, root: Path) -> Results:
    """Every measure, one after another."""
    folders = make_folders(root)
    engine = made(folders[0])
    try:
        size_bytes = engine.client.get("/model_info").json()["weights"]["bytes"]
        cores = len(os.sched_getaffinity(0))
        copies = {
            threads: copy_seconds(size_bytes, threads, reps) for threads in sorted({1, cores})
        }
        found = asyncio.run(updates(engine, folders, reps))
        restarts = []
        for turn in range(reps):
            engine, took = restart(engine, folders[(turn + 1) % 2])
            restarts.append(took)
    finally:
        engine.stop()
    return Results(found, restarts, copies, size_bytes)


def shown(seconds: list[float], unit: str) -> str:
    """Median, smallest and largest."""
    by, digits = (1000, 1) if unit == "ms" else (1, 2)
    return spread([second * by for second in seconds], digits)


ROWS: list[tuple[str, str, Callable[[Update], float]]] = [
    ("pause, as the engine tells it", "ms", lambda u: u.pause_s),
    ("of it: the swap, slowest rank", "ms", lambda u: u.effect_s),
    ("no client gets a token", "ms", lambda u: u.silence_s),
    ("… while nothing is updated", "ms", lambda u: u.normal_silence_s),
    ("a client's longest wait for a token", "ms", lambda u: u.gap_s),
    ("… while nothing is updated", "ms", lambda u: u.normal_gap_s),
    ("… its usual wait", "ms", lambda u: u.usual_gap_s),
    ("staging", "s", lambda u: u.staged_s),
    ("request to answer", "s", lambda u: u.total_s),
]


def report(results: Results, reps: int, before: float) -> str:
    """The tables, with what they were measured on."""
    after = os.getloadavg()[0]
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, {cpu_name()}, {len(os.sched_getaffinity(0))} cores, Python "
        f"{platform.python_version()}, torch {torch.__version__}, bfloat16, SmolLM2-135M "
        f"({results.size_bytes / 1e6:.0f} MB a rank), 2 ranks, {CLIENTS} streaming clients, mode "
        f"retract; medians of {reps} turns (min–max); load {before:.1f} before, {after:.1f} after. "
        "No request failed.",
        "",
        f"| row | unit | {' | '.join(KINDS)} |",
        "| --- | --- |" + " --- |" * len(KINDS),
    ]
    for name, unit, value in ROWS:
        cells = [shown([value(u) for u in results.updates[kind]], unit) for kind in KINDS]
        lines.append(f"| {name} | {unit} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *compared(results)])


def compared(results: Results) -> list[str]:
    """Beside the bandwidth bound, and beside stopping and starting."""
    middle = statistics.median
    disk = results.updates["from disk"]
    pause, total = middle(u.pause_s for u in disk), middle(u.total_s for u in disk)
    gap, swap = middle(u.gap_s for u in disk), middle(u.effect_s for u in disk)
    lines = ["| beside | | from disk, in comparison |", "| --- | --- | --- |"]
    for threads, took in results.copies.items():
        bound = 1.5 * middle(took)
        rates = sorted(results.size_bytes / second / 1e9 for second in took)
        lines.append(
            f"| copying the weights, {threads} thread{'s' * (threads > 1)} | "
            f"{shown(took, 'ms')} ms, {middle(rates):.1f} GB/s | pause is {pause / bound:.2f}×, "
            f"its swap {swap / bound:.3f}× the bound of 1.5 × bytes ÷ bandwidth "
            f"({bound * 1000:.0f} ms) |"
        )
    stop = middle(results.restarts)
    lines.append(
        f"| stop and start on the other folder, without load | {shown(results.restarts, 's')} s | "
        f"{stop / total:.1f}× the whole update, {stop / gap:.0f}× a client's longest wait, "
        f"{stop / pause:.0f}× the pause |"
    )
    return lines


def main() -> None:
    """Measure, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    (ROOT / "var").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="weights-", dir=ROOT / "var") as root:
        results = run(args.reps, Path(root))
    text = report(results, args.reps, before)
    print(text)
    if args.write:
        write("weights", text)


if __name__ == "__main__":
    main()

"""The three tiers: first token by tier and backend, each tier's bandwidth, the tree, token gaps.

    .venv/bin/python tests/bench/hicache.py [--write] [--reps 5] [--only PART]

First token: SmolLM2 in bfloat16 on one rank over HTTP, a prompt of 1,800 tokens found nowhere, on
the device, on the host, in each backend, in turns. Bandwidth: pages through the very classes that
the engine uses, beside the raw medium in the same run. Tree: SGLang's own workload.
Gaps: streaming clients that decode, while attaches that fail on a rank come one after another.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # not this folder: here `engine` would be the other bench

from engine.cache.radix_cache import RadixCache  # noqa: E402
from engine.cache.storage.base import Site, Status, Storage  # noqa: E402
from engine.cache.storage.records import seal  # noqa: E402
from engine.cache.storage.registry import make, problem_of  # noqa: E402
from engine.memory.host_pool import HostPool, PageShape  # noqa: E402
from engine.memory.page_copy import PageCopier  # noqa: E402
from engine.models.gguf import convert, find_packaged_gguf  # noqa: E402
from engine.protocol import HostLayout, StorageBackend, read_config  # noqa: E402
from tests.bench.figures import CACHE, cpu_name, percentile, spread, write  # noqa: E402
from tests.bench.raw_clients import raw_client  # noqa: E402
from tests.bench.weights import Clients, gaps  # noqa: E402
from tests.engine.cache.storage.bed import ServedBed  # noqa: E402
from tests.engine.cache.storage.beds_native import MooncakeBed, NixlObjectsBed  # noqa: E402
from tests.engine.cache.storage.beds_own import ValkeyBed  # noqa: E402
from tests.engine.process.storage_client import attach, detach, flush, until_idle  # noqa: E402
from tests.fakes.engine_process import EngineProcess  # noqa: E402

PREFIX_TOKENS = 1800
PAGE_TOKENS = 16
PAGES = 64  # of one bandwidth measure
SHAPE = PageShape(num_layers=30, num_heads=3, side_bytes=3 * PAGE_TOKENS * 64 * 2)
RNG = random.Random(1)
Part = Callable[[int], list[str]]


def prompt(length: int) -> list[int]:
    """Random tokens: nothing is cached by accident."""
    return [RNG.randrange(1000, 40_000) for _ in range(length)]


def shown(values: list[float], by: float = 1.0, digits: int = 1) -> str:
    """Median, smallest and largest."""
    return spread([value * by for value in values], digits)


# ---- backends --------------------------------------------------------------------------------


@contextmanager
def backends(folder: Path) -> Iterator[dict[str, tuple[StorageBackend, dict[str, Any]]]]:
    """Every backend that can run here for real, its server running."""
    found: dict[str, tuple[StorageBackend, dict[str, Any]]] = {
        "file": (StorageBackend.FILE, {"min_free_space": 0}),
        "file, O_DIRECT off": (StorageBackend.FILE, {"min_free_space": 0, "direct_io": "off"}),
    }
    with ExitStack() as stack:

        def served(kind: type[ServedBed]) -> ServedBed:
            own = folder / kind.__name__
            own.mkdir()
            bed = kind(own)
            bed.start()
            stack.callback(bed.stop)
            return bed

        valkey = served(ValkeyBed)
        found["valkey, tcp"] = (
            StorageBackend.VALKEY,
            {"url": f"valkey://127.0.0.1:{valkey.port}/0"},
        )
        if not problem_of(StorageBackend.MOONCAKE):
            master = served(MooncakeBed)
            found["mooncake, tcp"] = (
                StorageBackend.MOONCAKE,
                {
                    "master_server_address": f"127.0.0.1:{master.port}",
                    "global_segment_size": 256 << 20,
                },
            )
        if not problem_of(StorageBackend.NIXL):
            found["nixl, POSIX"] = (StorageBackend.NIXL, {"plugin": "POSIX", "min_free_space": 0})
            bucket = served(NixlObjectsBed)
            stack.callback(NixlObjectsBed.end)
            found["nixl, OBJ (moto)"] = (
                StorageBackend.NIXL,
                {
                    "plugin": "OBJ",
                    "bucket": NixlObjectsBed.bucket,
                    "endpoint_override": f"http://127.0.0.1:{bucket.port}",
                    "access_key": "access",
                    "secret_key": "secret",
                    "io_timeout": 30.0,
                },
            )
        if not problem_of(StorageBackend.AIBRIX):
            found["aibrix, RocksDB"] = (StorageBackend.AIBRIX, {"min_free_space": 0})
        yield found


# ---- first token -----------------------------------------------------------------------------


def first_token(reps: int) -> list[str]:
    """Each tier in turns, and each backend; ratios of medians to a cold prompt."""
    rows: dict[str, list[float]] = {}
    engine = EngineProcess(
        CACHE / "smollm2",
        CACHE / "ext",
        dtype="bfloat16",
        dp_size=1,
        max_total_tokens=2560,
        hicache_ratio=4,
        threads=len(os.sched_getaffinity(0)),
    )
    engine.command.append("--enable-hierarchical-cache")
    with tempfile.TemporaryDirectory(prefix="qb-") as folder, backends(Path(folder)) as found:
        try:
            engine.start()
            for turn in range(reps + 1):
                ids = prompt(PREFIX_TOKENS + 8)
                for name, took in memory_tiers(engine, ids):
                    if turn:
                        rows.setdefault(name, []).append(took)
                for name, (backend, config) in found.items():
                    took = from_storage(engine, ids, backend, config, folder)
                    if turn:
                        rows.setdefault(f"L3 {name}", []).append(took)
        finally:
            engine.stop()
    cold = statistics.median(rows["cold"])
    lines = [
        f"First token of a prompt of {PREFIX_TOKENS} tokens over HTTP, bfloat16, one rank:",
        "",
        "| found | ms | of cold |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| {name} | {shown(took, 1000)} | {statistics.median(took) / cold:.2f}× |"
        for name, took in rows.items()
    ]
    return lines


def memory_tiers(engine: EngineProcess, ids: list[int]) -> Iterator[tuple[str, float]]:
    """Cold, on the device, on the host: another prompt pushes this one off the device."""
    flush(engine)
    yield "cold", timed(engine, ids, ("device", 0))
    until_idle(engine)
    yield "L1", timed(engine, ids, ("device", 1792))
    for _ in range(2):
        engine.generate(prompt(PREFIX_TOKENS), 1)
        until_idle(engine)
    yield "L2", timed(engine, ids, ("host", 1792))
    until_idle(engine)


def from_storage(
    engine: EngineProcess,
    ids: list[int],
    backend: StorageBackend,
    config: dict[str, Any],
    folder: str,
) -> float:
    """Attached with the prompt on the host, which is written there; then flushed."""
    settings = {"prefetch_threshold": 16, "prefetch_timeout_base": 30.0, **config}
    done = attach(engine, backend.value, settings, timeout=60)
    assert done.status_code == 200, done.text
    engine.generate(ids, 1)
    until_idle(engine)
    flush(engine)
    took = timed(engine, ids, ("storage", 1792))
    until_idle(engine)
    assert detach(engine).status_code == 200
    return took


def timed(engine: EngineProcess, ids: list[int], found: tuple[str, int]) -> float:
    start = time.perf_counter()
    answer = engine.generate(ids, 1)
    took = time.perf_counter() - start
    details = answer.json()["meta_info"]["cached_tokens_details"]
    assert details[found[0]] == found[1], details
    return took


# ---- bandwidth -------------------------------------------------------------------------------


def bandwidth(reps: int) -> list[str]:
    """Pages between the tiers, beside the raw medium, in one run."""
    pool = HostPool(SHAPE, 2 * PAGES, HostLayout.PAGE_FIRST)
    size = PAGES * pool.record_bytes
    lines = [
        f"{PAGES} pages of {SHAPE.payload_bytes / 1024:.0f} KiB (SmolLM2, {PAGE_TOKENS} tokens), "
        "MB/s; of raw: beside the same bytes through the medium or its client alone:",
        "",
        "| tier | write | read | of raw |",
        "| --- | --- | --- | --- |",
        _memory_row(pool, reps),
    ]
    with tempfile.TemporaryDirectory(prefix="qb-", dir=CACHE) as folder:
        raw = raw_disk(Path(folder), pool, reps)
        lines.append(f"| disk alone, O_DIRECT | {mb_s(size, raw[0])} | {mb_s(size, raw[1])} | |")
        with backends(Path(folder)) as found:
            for name, (backend, config) in found.items():
                puts, gets = through(backend, config, Path(folder), pool, reps)
                words, writes, reads = "the disk", *raw
                if name != "file":
                    words, writes, reads = raw_client(
                        name, Path(folder), config, pool, pages=PAGES, reps=reps
                    )
                beside = f"{_ratio(writes, puts)} write, {_ratio(reads, gets)} read ({words})"
                lines.append(f"| {name} | {mb_s(size, puts)} | {mb_s(size, gets)} | {beside} |")
    return lines


def _ratio(raw: list[float], ours: list[float]) -> str:
    return f"{statistics.median(raw) / statistics.median(ours):.2f}×"


def mb_s(size_bytes: int, seconds: list[float]) -> str:
    return shown([size_bytes / each / 1e6 for each in seconds], digits=0)


def _memory_row(pool: HostPool, reps: int) -> str:
    """The page copier beside one memcpy of as many bytes, one thread each."""
    torch.set_num_threads(1)
    heads, head = SHAPE.num_heads, SHAPE.side_bytes // SHAPE.num_heads
    device = [torch.ones((PAGES, heads, head), dtype=torch.uint8) for _ in range(60)]
    copier = PageCopier(device, pool)
    pages = list(range(PAGES))
    size = PAGES * SHAPE.payload_bytes
    source, target = torch.ones(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    out = measure(lambda: copier.to_host(pages, pages), reps)
    back = measure(lambda: copier.to_device(pages, pages), reps)
    raw = measure(lambda: target.copy_(source), reps)
    beside = f"{_ratio(raw, out)} write, {_ratio(raw, back)} read ({mb_s(size, raw)} memcpy)"
    return f"| L2, L1↔L2 on the CPU | {mb_s(size, out)} | {mb_s(size, back)} | {beside} |"


def measure(call: Callable[[], object], reps: int) -> list[float]:
    took = []
    for turn in range(reps + 1):
        start = time.perf_counter()
        call()
        if turn:
            took.append(time.perf_counter() - start)
    return took


def raw_disk(folder: Path, pool: HostPool, reps: int) -> tuple[list[float], list[float]]:
    """The same bytes, written and read with O_DIRECT in one file, a page at a time."""
    path, writes, reads = folder / "raw", [], []
    for turn in range(reps + 1):
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        os.posix_fallocate(fd, 0, PAGES * pool.record_bytes)
        spans = []
        for call in (os.pwritev, os.preadv):
            start = time.perf_counter()
            for page in range(PAGES):
                call(fd, [pool.record(page)], page * pool.record_bytes)
            spans.append(time.perf_counter() - start)
        os.close(fd)
        if turn:
            writes.append(spans[0])
            reads.append(spans[1])
    path.unlink()
    return writes, reads


def through(
    backend: StorageBackend, config: dict[str, Any], folder: Path, pool: HostPool, reps: int
) -> tuple[list[float], list[float]]:
    """Puts and gets of fresh keys, in batches as the worker makes them."""
    site = Site(
        model="bench",
        identity=os.urandom(16),
        dp_rank=0,
        record_bytes=pool.record_bytes,
        layout=HostLayout.PAGE_FIRST,
        roots=(folder,),
        endpoints=("127.0.0.1:*",),
        pool=pool.memory,
    )
    storage = make(backend, read_config(backend, config), site)
    storage.open(time.monotonic() + 30)
    puts, gets = [], []
    try:
        for turn in range(reps + 1):
            keys = [site.identity + os.urandom(32) for _ in range(PAGES)]
            for page, key in enumerate(keys):
                seal(pool.record(page), key, SHAPE.payload_bytes)
            spans = [_batches(storage.batch_put, keys, pool, 0)]
            spans.append(_batches(storage.batch_get, keys, pool, PAGES))
            if turn:
                puts.append(spans[0])
                gets.append(spans[1])
    finally:
        _close(storage)
    return puts, gets


def _close(storage: Storage) -> None:
    storage.close(time.monotonic() + 30)


def _batches(
    call: Callable[..., list[Status]], keys: list[bytes], pool: HostPool, at: int
) -> float:
    start = time.perf_counter()
    for first in range(0, PAGES, 32):
        some = keys[first : first + 32]
        records = [pool.record(at + first + i) for i in range(len(some))]
        statuses = call(some, records)
        assert statuses == [Status.OK] * len(some), statuses
    return time.perf_counter() - start


# ---- the tree --------------------------------------------------------------------------------


def tree(reps: int) -> list[str]:
    """10,000 sequences of 512 tokens, 100 groups that share 256; keys as the engine keeps them."""
    lines = [
        "The prefix tree, 10,000 × 512 tokens, 100 groups sharing 256 (SGLang's Rust core on a "
        "machine of this kind: 42.8k, 192k, 75 µs at page 1; 34.7k, 210k, 77 µs at page 64):",
        "",
        "| page | insert + match /s | match /s | evict 512 tokens, µs |",
        "| --- | --- | --- | --- |",
    ]
    rng = random.Random(1)
    heads = [[rng.randrange(50_000) for _ in range(256)] for _ in range(100)]
    sequences = [
        array("I", heads[i % 100] + [rng.randrange(50_000) for _ in range(256)])
        for i in range(10_000)
    ]
    for page in (1, 16, 64):
        both, alone, evicted = [], [], []
        for _ in range(reps):
            gc.collect()
            found = _tree_turn(sequences, page)
            both.append(found[0])
            alone.append(found[1])
            evicted.append(found[2])
        cells = (shown(both, digits=0), shown(alone, digits=0), shown(evicted, 1e6))
        lines.append(f"| {page} | {' | '.join(cells)} |")
    return lines


def _tree_turn(sequences: list[array[int]], page: int) -> tuple[float, float, float]:
    cache, count = RadixCache(page), 512 // page
    pages = [list(range(i * count, (i + 1) * count)) for i in range(len(sequences))]
    start = time.perf_counter()
    for sequence, own in zip(sequences, pages, strict=True):
        cache.match(sequence)
        cache.insert(sequence, own)
    middle = time.perf_counter()
    for sequence in sequences:
        cache.match(sequence)
    end = time.perf_counter()
    took = []
    for _ in range(200):
        began = time.perf_counter()
        cache.evict(count)
        took.append(time.perf_counter() - began)
    return (
        len(sequences) / (middle - start),
        len(sequences) / (end - middle),
        statistics.median(took),
    )


# ---- gaps ------------------------------------------------------------------------------------

FAILING = {
    "file, the folder is a file": ("file", {}),
    "valkey, nobody listens": ("valkey", {"url": "valkey://127.0.0.1:1"}),
    "mooncake, no master": ("mooncake", {"master_server_address": "127.0.0.1:1"}),
}


def token_gaps(reps: int) -> list[str]:
    """p99 of the waits for a token, with attaches that fail on rank 1 and without, in turns."""
    engine = EngineProcess(
        CACHE / "smollm2", CACHE / "ext", dtype="bfloat16", max_total_tokens=16_384
    )
    engine.command.append("--enable-hierarchical-cache")
    try:
        engine.start()
        found = asyncio.run(_gaps(engine, reps))
    finally:
        engine.stop()
    lines = [
        "Eight streaming clients on two ranks; p99 of waits for a token, ms, in windows of 3 s "
        "with one failing attach after another, and in windows without:",
        "",
        "| attach | with | without | difference | attaches a window |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, (with_, without, counts) in found.items():
        more = 1000 * (statistics.median(with_) - statistics.median(without))
        cells = (shown(with_, 1000), shown(without, 1000), f"{more:+.1f}")
        lines.append(f"| {name} | {' | '.join(cells)} | {statistics.median(counts):.0f} |")
    return lines


async def _gaps(
    engine: EngineProcess, reps: int
) -> dict[str, tuple[list[float], list[float], list[float]]]:
    blocked = engine.dir / "blocked"
    blocked.write_text("not a folder")
    found: dict[str, tuple[list[float], list[float], list[float]]] = {}
    clients = Clients(engine.port)
    await asyncio.sleep(2)
    for _ in range(reps):
        for name, (backend, config) in FAILING.items():
            rows = found.setdefault(name, ([], [], []))
            rows[1].append(await _window(clients))
            tries = asyncio.create_task(_attaches(engine, backend, config, blocked))
            rows[0].append(await _window(clients))
            rows[2].append(await tries)
    await clients.end()
    return found


async def _window(clients: Clients) -> float:
    start = time.perf_counter()
    await asyncio.sleep(3)
    waits = [gap for s in clients.streams for gap in gaps(s.at, start, start + 3)]
    return percentile(waits, 0.99)


async def _attaches(
    engine: EngineProcess, backend: str, config: dict[str, Any], blocked: Path
) -> float:
    until, count = time.perf_counter() + 2.8, 0
    overrides = {"1": {"file_storage_path": str(blocked)}} if backend == "file" else {}
    while time.perf_counter() < until:
        answer = await asyncio.to_thread(
            attach, engine, backend, config, rank_configs=overrides, timeout=30
        )
        assert answer.status_code == 400 and "rank 1: " in answer.text, answer.text
        count += 1
    return count


# ---- all -------------------------------------------------------------------------------------

PARTS: dict[str, Part] = {
    "tree": tree,
    "bandwidth": bandwidth,
    "first token": first_token,
    "gaps": token_gaps,
}


def main() -> None:
    """Measure, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    args = parser.parse_args()
    gguf = find_packaged_gguf()
    assert gguf is not None
    convert(gguf, CACHE / "smollm2", lambda phrase, share: None)
    for name in [args.only] if args.only else PARTS:
        before = os.getloadavg()[0]
        lines = PARTS[name](args.reps)
        head = (
            f"{datetime.now(UTC):%Y-%m-%d}, {cpu_name()}, {len(os.sched_getaffinity(0))} cores, "
            f"Python {platform.python_version()}; medians of {args.reps} turns (min–max); load "
            f"{before:.1f} before, {os.getloadavg()[0]:.1f} after."
        )
        text = "\n".join([head, "", *lines])
        print(text, end="\n\n", flush=True)
        if args.write:
            write(f"hicache {name}", text)


if __name__ == "__main__":
    main()

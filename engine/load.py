"""`python -m engine load`: steady traffic against a running engine, for people and tests.

Each client asks one prompt after another, with a shared beginning, and streams the answers; prints
a line a second and a summary. Plain HTTP over asyncio streams: no extra dependency.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_SHARED = "You are a helpful assistant who answers in complete sentences. " * 6
_SUBJECTS = ("the sea", "a clock", "winter", "bread", "a long road", "the number seven", "rain")


@dataclass
class Totals:
    """What all clients saw."""

    started: int = 0
    finished: int = 0
    failed: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    first_token_s: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)


async def run(url: str, *, clients: int, seconds: float, max_new: int, key: str) -> Totals:
    """Traffic for so many seconds; requests under way at the end are finished."""
    totals = Totals()
    end = time.monotonic() + seconds
    tasks = [
        asyncio.create_task(_client(url, number, end, max_new, key, totals))
        for number in range(clients)
    ]
    reporter = asyncio.create_task(_report(totals))
    await asyncio.gather(*tasks)
    reporter.cancel()
    return totals


async def _report(totals: Totals) -> None:
    before = 0
    while True:
        await asyncio.sleep(1)
        rate, before = totals.tokens - before, totals.tokens
        open_count = totals.started - totals.finished - totals.failed
        print(f"{rate:6d} tok/s  open {open_count:3d}  done {totals.finished}", flush=True)


async def _client(
    url: str, number: int, end: float, max_new: int, key: str, totals: Totals
) -> None:
    rng = random.Random(number)
    while time.monotonic() < end:
        prompt = f"{_SHARED}Write about {rng.choice(_SUBJECTS)}, number {rng.randrange(1000)}."
        totals.started += 1
        try:
            await _ask(url, prompt, rng.randint(max_new // 2, max_new), key, totals)
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            totals.failed += 1
            name = f"{type(error).__name__}: {error}"[:120]
            totals.errors[name] = totals.errors.get(name, 0) + 1
            await asyncio.sleep(0.5)


async def _ask(url: str, prompt: str, max_new: int, key: str, totals: Totals) -> None:
    parts = urlsplit(url)
    body = json.dumps(
        {
            "text": prompt,
            "stream": True,
            "sampling_params": {"max_new_tokens": max_new, "temperature": 0.8, "ignore_eos": True},
        }
    ).encode()
    head = (
        f"POST /generate HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    )
    head += f"Authorization: Bearer {key}\r\n" if key else ""
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        writer.write(head.encode() + b"\r\n" + body)
        await _read(reader, totals)
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader, totals: Totals) -> None:
    asked, seen, meta = time.monotonic(), 0, dict[str, int]()
    status = (await reader.readline()).split()
    if len(status) < 2 or status[1] != b"200":
        rest = (await reader.read(600)).decode(errors="replace")
        raise ValueError(f"status {status[1:2]}: {rest.splitlines()[-1:]}")
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise ValueError(event["error"]["message"])
        count = len(event["output_ids"])
        if count and not seen:
            totals.first_token_s.append(time.monotonic() - asked)
        totals.tokens += count - seen
        seen, meta = count, event["meta_info"]
    if not meta:
        raise ValueError("the stream ended without an answer")
    totals.finished += 1
    totals.prompt_tokens += meta["prompt_tokens"]
    totals.cached_tokens += meta["cached_tokens"]


def main(url: str, *, clients: int, seconds: float, max_new: int, key: str) -> int:
    """Run and print; non-zero when a request failed."""
    started = time.monotonic()
    totals = asyncio.run(run(url, clients=clients, seconds=seconds, max_new=max_new, key=key))
    took = time.monotonic() - started
    hit = totals.cached_tokens / totals.prompt_tokens if totals.prompt_tokens else 0.0
    first = sorted(totals.first_token_s)
    print(
        f"{totals.finished} requests in {took:.1f} s, {totals.failed} failed; "
        f"{totals.tokens / took:.0f} tok/s, {hit:.0%} of prompt tokens cached"
    )
    if first:
        p99 = first[min(len(first) - 1, int(len(first) * 0.99))]
        print(f"first token: median {statistics.median(first):.3f} s, p99 {p99:.3f} s")
    for error, count in totals.errors.items():
        print(f"{count} x {error}")
    return 1 if totals.failed else 0

"""What pages and automation hear: many sockets, one that reads nothing, and streams that break.

    .venv/bin/python tests/bench/live.py [--sockets 200] [--seconds 20] [--events 100000] [--write]

The real console on SQLite and Valkey. The bench stands for the relay: it keeps an engine's snapshot
and hints, five times a second, and notes when each socket has it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import websockets

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # not this folder: here `engine` would be the other bench

from tests.bench.figures import percentile, write  # noqa: E402
from tests.fakes import plain_http  # noqa: E402
from tests.fakes.engine import FakeEngine  # noqa: E402
from tests.fakes.stack import Stack  # noqa: E402

if TYPE_CHECKING:
    from engine.protocol import EngineState

UPDATES_A_SECOND = 5.0
TOPIC = "engine:bench"
NUM_BREAKS = 100


@dataclass
class Heard:
    """Seconds from a change to its arrival, over all sockets but one that is stalled."""

    took: list[float]
    cpu_s: float  # of the web process
    wall_s: float
    num_changes: int
    grown_bytes: int  # of its resident memory

    def at(self, share: float) -> float:
        return percentile(self.took, share)


def running_of(state: EngineState, count: int) -> EngineState:
    """The state with another number of running requests: a change that pages show."""
    import msgspec

    first, *rest = state.ranks
    return msgspec.structs.replace(
        state, ranks=[msgspec.structs.replace(first, running=count), *rest]
    )


class Relay:
    """Stands for the console's: changes the engine's snapshot and hints, and knows when."""

    def __init__(self) -> None:
        from console.snapshots import snapshots_get

        self._stored = snapshots_get(["bench"])["bench"]
        self.sent: dict[int, float] = {}

    def change(self) -> None:
        """The next state."""
        import msgspec

        from console.relay import publish

        count = len(self.sent) + 1
        state = self._stored.state
        assert state is not None
        stored = msgspec.structs.replace(
            self._stored,
            rev=self._stored.rev + count,
            observed_at=time.time(),
            state=running_of(state, count),
        )
        self.sent[count] = time.perf_counter()
        publish("bench", stored)


async def listen(
    url: str, headers: dict[str, str], relay: Relay, took: list[float], ready: asyncio.Semaphore
) -> None:
    """One socket: notes how long each change took to come, until it is cancelled."""
    async with websockets.connect(url, additional_headers=headers, max_size=None) as socket:
        await socket.send(json.dumps({"type": "subscribe", "topics": [TOPIC]}))
        async for message in socket:
            now, told = time.perf_counter(), json.loads(message)
            if told["type"] != "update":
                continue
            count = told["data"]["ranks"][0]["running"]
            if count in relay.sent:
                took.append(now - relay.sent[count])
            elif not relay.sent:
                ready.release()


async def stall(url: str, headers: dict[str, str]) -> None:
    """A socket whose reader sleeps: it asks for everything and reads nothing."""
    reader, writer = await asyncio.open_connection(
        url.split("/")[2].split(":")[0], int(url.split(":")[2].split("/")[0])
    )
    key = "dGhlIHNhbXBsZSBub25jZQ=="
    lines = [
        "GET /ws/live/ HTTP/1.1", f"Host: {url.split('/')[2]}", "Upgrade: websocket",
        "Connection: Upgrade", f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13",
        *(f"{name}: {value}" for name, value in headers.items()), "", "",
    ]  # fmt: skip
    writer.write("\r\n".join(lines).encode())
    await reader.readuntil(b"\r\n\r\n")
    text = json.dumps({"type": "subscribe", "topics": [TOPIC, "fleet", "jobs"]}).encode()
    mask = os.urandom(4)
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(text))
    writer.write(bytes([0x81, 0x80 | len(text)]) + mask + masked)
    await writer.drain()
    writer.transport.pause_reading()
    await asyncio.Event().wait()


async def flood(
    stack: Stack, headers: dict[str, str], sockets: int, seconds: float, *, is_stalled: bool
) -> Heard:
    """Changes for so long, with so many that listen."""
    url = f"ws://127.0.0.1:{stack.port}/ws/live/"
    relay, took, ready = Relay(), list[float](), asyncio.Semaphore(0)
    web = psutil.Process(stack.parts["web"].pid)
    tasks = [asyncio.create_task(listen(url, headers, relay, took, ready)) for _ in range(sockets)]
    if is_stalled:
        tasks.append(asyncio.create_task(stall(url, headers)))
    for _ in range(sockets):
        await ready.acquire()
    await asyncio.sleep(1)
    before, spent = web.memory_info().rss, sum(web.cpu_times()[:2])
    began = time.perf_counter()
    for number in range(1, int(seconds * UPDATES_A_SECOND) + 1):
        await asyncio.to_thread(relay.change)
        await asyncio.sleep(max(0.0, began + number / UPDATES_A_SECOND - time.perf_counter()))
    await asyncio.sleep(1)
    heard = Heard(
        took,
        cpu_s=sum(web.cpu_times()[:2]) - spent,
        wall_s=time.perf_counter() - began,
        num_changes=len(relay.sent),
        grown_bytes=web.memory_info().rss - before,
    )
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return heard


def append(count: int, job_id: str) -> None:
    """So many entries, of a job and an engine in turn, as acts of the console write them."""
    from django.db import transaction

    from console.actors import Actor
    from console.choices import AuditStage
    from console.clock import db_now
    from console.services.audit import audit_append

    system, done = Actor.system("bench"), 0
    while done < count:
        with transaction.atomic():
            for number in range(done, min(count, done + 500)):
                is_job = number % 10 == 0
                audit_append(
                    action="job.progress" if is_job else "engine.changed",
                    stage=AuditStage.NOTE, actor=system, now=db_now(), process="bench",
                    engine_name="bench", job_id=job_id if is_job else None, facts={"n": number},
                )  # fmt: skip
        done += 500
        time.sleep(0.005)


def follow(stack: Stack, since: int, until: int, breaks: int) -> tuple[list[int], int]:
    """Every event's number up to `until`, over connections that are cut at any moment."""
    numbers: list[int] = []
    place, num_cut, chance = since, 0, random.Random(6)
    num_each = max(1, (until - since) // (breaks + 1))
    headers = {"Authorization": f"Bearer {stack.token}"}
    while place < until:
        most = chance.randint(1, num_each) if num_cut < breaks else 10**9
        with plain_http.stream(
            "GET", f"{stack.url}/api/v1/events?since={place}&for_s=600", headers=headers
        ) as answer:
            assert answer.status_code == 200, answer.read()
            num_here = 0
            for line in answer.iter_lines():
                if line.startswith("id: "):
                    pending = int(line[4:])
                elif not line:  # an event counts once it is whole
                    place = pending
                    num_here += 1
                elif line.startswith("event: ") and line[7:] in ("job", "engine"):
                    numbers.append(pending)
                if place >= until or num_here >= most:
                    break
        num_cut += place < until
        while numbers and numbers[-1] > place:
            numbers.pop()  # its end had not come
    return numbers, num_cut


@contextmanager
def console() -> Iterator[tuple[Stack, dict[str, str], str]]:
    """The stack with one engine that was seen and one job that was done; then without a relay."""
    stack = Stack()
    try:
        stack.up()
        with FakeEngine(stack.run_dir, name="bench") as engine:
            stack.register(engine)
            job_id = stack.submit(engine)
            stack.ended(job_id)
            stack.kill("relay")
            os.environ |= {name: stack.env[name] for name in ("QUIESCE_STATE_DIR", "REDIS_URL")} | {
                "DJANGO_SETTINGS_MODULE": "console.project.settings",
                "QUIESCE_LOG_LEVEL": "WARNING",
            }
            import django

            django.setup()
            with stack.login() as client:
                cookie = f"quiesce_sid={client.cookies['quiesce_sid']}"
            yield stack, {"Cookie": cookie, "Origin": stack.url}, job_id
    finally:
        stack.down()


def main() -> None:
    """Measure, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sockets", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    lines, rows = (
        list[str](),
        [
            "| sockets | p50 ms | p99 ms | max ms | CPU ms a message | of a core | messages |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ],
    )
    with console() as (stack, headers, job_id):
        for sockets in sorted({1, max(1, args.sockets // 2), args.sockets}):
            heard = asyncio.run(flood(stack, headers, sockets, args.seconds, is_stalled=False))
            num = max(1, len(heard.took))
            rows.append(
                f"| {sockets} | {heard.at(0.5) * 1000:.0f} | {heard.at(0.99) * 1000:.0f} "
                f"| {heard.at(1) * 1000:.0f} | {heard.cpu_s / num * 1000:.2f} "
                f"| {100 * heard.cpu_s / heard.wall_s:.0f} % "
                f"| {num} of {sockets * heard.num_changes} |"
            )
            print(rows[-1], flush=True)
        some = max(2, args.sockets // 10)
        free = asyncio.run(flood(stack, headers, some, args.seconds, is_stalled=False))
        held = asyncio.run(flood(stack, headers, some, args.seconds, is_stalled=True))
        lines.append(
            f"- beside one that reads nothing, {some} sockets: p99 {held.at(0.99) * 1000:.0f} ms, "
            f"{held.at(0.99) / free.at(0.99):.2f}× of {free.at(0.99) * 1000:.0f} ms without it; "
            f"the web process grew by {held.grown_bytes / 2**20:.1f} MiB "
            f"(without it by {free.grown_bytes / 2**20:.1f})"
        )
        since = stack.request("GET", "/audit/head").json()["seq"]
        until, breaks = since + args.events, min(NUM_BREAKS, args.events // 10)
        writer = threading.Thread(target=append, args=(args.events, job_id))
        began = time.perf_counter()
        writer.start()
        numbers, num_cut = follow(stack, since, until, breaks)
        took_s = time.perf_counter() - began
        writer.join()
        missed = sorted(set(range(since + 1, until + 1)) - set(numbers))
        doubled = len(numbers) - len(set(numbers))
        lines.append(
            f"- `GET /api/v1/events`, {args.events} events written while they are read, {num_cut} "
            f"connections cut: {len(missed)} missed, {doubled} twice, "
            f"{'in' if numbers == sorted(numbers) else 'out of'} order, "
            f"{args.events / took_s:.0f} events a second"
        )
    text = (
        f"{datetime.now(UTC):%Y-%m-%d}, SQLite, embedded Valkey, clients on the same 2 cores; load "
        f"{load:.1f} before, {os.getloadavg()[0]:.1f} after.\n\n"
        f"{UPDATES_A_SECOND:.0f} changes a second of one engine, from the change to each of so "
        "many open pages; CPU is the web process's:\n\n"
        + "\n".join(rows)
        + "\n\n"
        + "\n".join(lines)
    )
    print(text)
    if args.write:
        write("live", text)


if __name__ == "__main__":
    main()

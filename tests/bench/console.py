"""POST /jobs on an idle engine until its terminal state is seen on a WebSocket: p50 and p99.

    .venv/bin/python tests/bench/console.py [--jobs 200] [--write]

The whole real stack as bin/run starts it, real engine included, in a state folder of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import httpx
import websockets

from tests.fakes import plain_http

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # not this folder: here `engine` would be the other bench

from engine.models.gguf import convert, find_packaged_gguf  # noqa: E402
from tests.bench.engine import CACHE, write  # noqa: E402
from tests.fakes.supervised import Supervised, supervised  # noqa: E402

PAUSE_S = 0.15  # between jobs: a socket may send twenty messages a second
TERMINAL = ("succeeded", "failed", "partial", "expired", "cancelled", "interrupted")


def cookies(stack: Supervised) -> str:
    """A logged-in session, as a Cookie header."""
    with plain_http.client(base_url=stack.base) as client:
        client.get("/login")
        form = {
            "username": "admin",
            "password": stack.password,
            "csrfmiddlewaretoken": client.cookies["quiesce_csrf"],
        }
        answer = client.post("/login", data=form, headers={"Origin": stack.base})
        assert answer.status_code == 302, answer.text
        return "; ".join(f"{name}={value}" for name, value in client.cookies.items())


async def measure(stack: Supervised, jobs: int) -> list[float]:
    """Seconds of each job; the first few warm up."""
    took = []
    headers = {"Authorization": f"Bearer {stack.token}"}
    url = f"ws://127.0.0.1:{stack.port}/ws/live/"
    async with (
        httpx.AsyncClient(base_url=stack.base, headers=headers, timeout=30) as client,
        websockets.connect(
            url, additional_headers={"Cookie": cookies(stack), "Origin": stack.base}
        ) as socket,
    ):
        for number in range(jobs + 5):
            start = time.perf_counter()
            answer = await client.post(
                "/api/v1/jobs",
                json={
                    "engine": "local",
                    "kind": "flush_cache",
                    "params": {"timeout_s": 10, "mode": "wait"},
                    "reason": "bench",
                },
            )
            assert answer.status_code == 202, answer.text
            topic = f"job:{answer.json()['id']}"
            await socket.send(json.dumps({"type": "subscribe", "topics": [topic]}))
            await _terminal(socket, topic)
            if number >= 5:
                took.append(time.perf_counter() - start)
            await socket.send(json.dumps({"type": "unsubscribe", "topics": [topic]}))
            await asyncio.sleep(PAUSE_S)
    return sorted(took)


async def _terminal(socket: websockets.ClientConnection, topic: str) -> None:
    while True:
        message = json.loads(await asyncio.wait_for(socket.recv(), 20))
        if message.get("topic") == topic and message.get("type") == "update":
            state = message["data"]["state"]
            if state in TERMINAL:
                assert state == "succeeded", message
                return


def main() -> None:
    """Measure, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    gguf = find_packaged_gguf()
    assert gguf is not None
    (CACHE / "ext").mkdir(parents=True, exist_ok=True)
    convert(gguf, CACHE / "smollm2", lambda phrase, share: None)
    with supervised(CACHE / "smollm2", CACHE / "ext", "--dp-size", "2") as stack:
        took = asyncio.run(measure(stack, args.jobs))
    p50, p99 = took[len(took) // 2], took[min(len(took) - 1, int(len(took) * 0.99))]
    text = (
        f"{datetime.now(UTC):%Y-%m-%d}, {len(took)} jobs one after another, SQLite, embedded "
        f"Valkey, 2 ranks; load {before:.1f} before, {os.getloadavg()[0]:.1f} after: "
        f"p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, max {took[-1] * 1000:.0f} ms."
    )
    print(text)
    if args.write:
        write("console", text)


if __name__ == "__main__":
    main()

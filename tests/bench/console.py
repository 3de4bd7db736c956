"""POST /jobs on an idle engine until its terminal state is seen on a WebSocket: p50 and p99, and
where the time goes.

    .venv/bin/python tests/bench/console.py [--jobs 200] [--write]

The whole real stack as bin/run starts it, real engine included, in a state folder of its own. The
stations of a job are read from its audit entries, the engine's answer and the socket's own clock.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sqlite3
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import httpx
import websockets

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # not this folder: here `engine` would be the other bench

from engine.models.gguf import convert, find_packaged_gguf  # noqa: E402
from tests.bench.figures import CACHE, percentile, write  # noqa: E402
from tests.fakes import plain_http  # noqa: E402
from tests.fakes.supervised import Supervised, supervised  # noqa: E402

PAUSE_S = 0.15  # between jobs: each begins on an idle console, as one of a person does
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


@dataclass(frozen=True)
class Run:
    """One job: when it was asked for, answered, told to the page and seen there; since 1970."""

    job_id: str
    asked: float
    answered: float
    told: float
    seen: float


# From each station to the next; what happens on the way.
WAYS = (
    ("asked", "accepted", "`POST` read: HTTP, token, rights, form"),
    ("accepted", "dispatched", "accepted: row, entry, commit; doorbell; a worker has it; Hello"),
    ("dispatched", "ended", "claimed and dispatched: entries, commit; over ZMQ, and back"),
    ("ended", "told", "ended: entry, commit; hint; read, rendered, to the socket"),
    ("told", "seen", "over the socket"),
)
ENGINE = "in the engine: journal, every rank, journal"


def stations(stack: Supervised, run: Run) -> dict[str, float]:
    """When the job was where; `engine` is the time that the engine took of it."""
    key = [UUID(run.job_id).hex]
    with closing(sqlite3.connect(stack.dir / "console.sqlite3")) as rows:
        entries = rows.execute(
            "SELECT action, body FROM console_auditentry WHERE job_id = ?", key
        ).fetchall()
        ((reply,),) = rows.execute("SELECT reply FROM console_job WHERE id = ?", key)
    at = {
        action.removeprefix("job."): datetime.fromisoformat(json.loads(body)["at"]).timestamp()
        for action, body in entries
    }
    result = json.loads(reply)
    return at | {
        "asked": run.asked,
        "ended": at["succeeded"],
        "told": run.told,
        "seen": run.seen,
        "engine": result["finished_clock_s"] - result["started_clock_s"],
    }


def table(stack: Supervised, runs: list[Run]) -> str:
    """The median and the 99th percentile of each way between two stations."""
    found = [stations(stack, run) for run in runs]
    rows: list[tuple[str, list[float]]] = []
    for here, there, what in WAYS:
        engine = [one["engine"] if here == "dispatched" else 0.0 for one in found]
        took = [one[there] - one[here] - part for one, part in zip(found, engine, strict=True)]
        rows.append((what, took))
        if any(engine):
            rows.append((ENGINE, engine))
    lines = ["| | p50 ms | p99 ms |", "| --- | --- | --- |"]
    for what, took in rows:
        ms = sorted(1000 * one for one in took)
        lines.append(f"| {what} | {percentile(ms, 0.5):.1f} | {percentile(ms, 0.99):.1f} |")
    return "\n".join(lines)


def cpu_s(stack: Supervised) -> dict[str, float]:
    """Seconds of CPU so far of each part of the console."""
    words = {"web": "uvicorn", "worker": "celery", "relay": "relay", "reconciler": "reconcile"}
    spent = dict.fromkeys((*words, "Valkey", "engine"), 0.0)
    for process in stack.descendants():
        line = " ".join(process.cmdline())
        part = next((part for part, word in words.items() if word in line), "")
        part = part or ("Valkey" if "valkey" in line else "engine")
        spent[part] += sum(process.cpu_times()[:2])
    return spent


async def measure(stack: Supervised, jobs: int) -> list[Run]:
    """Each job; the first few warm up."""
    runs = []
    headers = {"Authorization": f"Bearer {stack.token}"}
    url = f"ws://127.0.0.1:{stack.port}/ws/live/"
    async with (
        httpx.AsyncClient(base_url=stack.base, headers=headers, timeout=30) as client,
        websockets.connect(
            url, additional_headers={"Cookie": cookies(stack), "Origin": stack.base}
        ) as socket,
    ):
        for number in range(jobs + 5):
            asked = time.time()
            answer = await client.post(
                "/api/v1/jobs",
                json={
                    "engine": "local",
                    "kind": "flush_cache",
                    "params": {"timeout_s": 10, "mode": "wait"},
                    "reason": "bench",
                },
            )
            answered = time.time()
            assert answer.status_code == 202, answer.text
            job_id = answer.json()["id"]
            topic = f"job:{job_id}"
            await socket.send(json.dumps({"type": "subscribe", "topics": [topic]}))
            told = await _terminal(socket, topic)
            if number >= 5:
                runs.append(Run(job_id, asked, answered, told, time.time()))
            await socket.send(json.dumps({"type": "unsubscribe", "topics": [topic]}))
            await asyncio.sleep(PAUSE_S)
    return runs


async def _terminal(socket: websockets.ClientConnection, topic: str) -> float:
    """When the server sent it."""
    while True:
        message = json.loads(await asyncio.wait_for(socket.recv(), 20))
        if message.get("topic") == topic and message.get("type") == "update":
            state = message["data"]["state"]
            if state in TERMINAL:
                assert state == "succeeded", message
                return datetime.fromisoformat(message["now"]).timestamp()


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
        spent = cpu_s(stack)
        gc.freeze()  # a pause of this process would be taken for one of the console
        runs = asyncio.run(measure(stack, args.jobs))
        cpu = {part: 1000 * (now - spent[part]) / args.jobs for part, now in cpu_s(stack).items()}
        ways = table(stack, runs)
    took = sorted(1000 * (run.seen - run.asked) for run in runs)
    answered = sorted(1000 * (run.answered - run.asked) for run in runs)
    text = (
        f"{datetime.now(UTC):%Y-%m-%d}, {len(took)} jobs one after another, SQLite, embedded "
        f"Valkey, 2 ranks; load {before:.1f} before, {os.getloadavg()[0]:.1f} after: "
        f"p50 {percentile(took, 0.5):.0f} ms, p99 {percentile(took, 0.99):.0f} ms, "
        f"max {took[-1]:.0f} ms. The answer to the POST came after "
        f"{percentile(answered, 0.5):.0f} ms (p99 {percentile(answered, 0.99):.0f}), while the job "
        f"went on.\n\n{ways}\n\nCPU a job, all that runs in the pause after it included: "
        + ", ".join(f"{part} {spent:.0f} ms" for part, spent in cpu.items())
        + "."
    )
    print(text)
    if args.write:
        write("console", text)


if __name__ == "__main__":
    main()

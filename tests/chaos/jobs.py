"""Jobs under faults, over real processes: `python -m tests.chaos.jobs --jobs 1000 --kills 50`.

Runs jobs of all kinds against two engines while each process is killed again and again, waits
until all is quiet, and has the oracle judge the records. Exit status 1 when anything is not as it
must be.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.clients import Asked, Clients
from tests.chaos.faults import FLUSHALL, Faults, plan
from tests.chaos.oracle import TERMINAL, Verdict, judge
from tests.chaos.records import Records, console_records, engine_records
from tests.chaos.stack import DP_SIZE, Chaos, Traffic, chaos, now
from tests.fakes.postgres import postgres, postgres_bin
from tests.fakes.stack import ROOT
from tests.fakes.waiting import wait_until

DATABASES = ("sqlite", "postgresql")


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    jobs: int
    kills: int
    flushalls: int
    at_once: int = 10
    seed: int = 1


@dataclass
class Ran:
    """One run: what was found, and the report of it."""

    verdict: Verdict
    chain: str
    is_chain_whole: bool
    report: dict[str, Any]

    @property
    def is_clean(self) -> bool:
        return self.verdict.is_clean and self.is_chain_whole


def run(size: Size, *, database: str, database_url: str = "") -> Ran:
    """The whole of it, from the start of the processes to the verdict."""
    with chaos(database_url=database_url) as made:
        started = now()
        traffic = [Traffic(engine, seed) for seed, engine in enumerate(made.engines * DP_SIZE)]
        clients = Clients(made, total=size.jobs, at_once=size.at_once, seed=size.seed)
        rng = random.Random(size.seed)
        order = plan(kills=size.kills, flushalls=size.flushalls, rng=rng)
        faults = Faults(made, order, rng)
        while not (clients.are_done and faults.is_over):
            if clients.are_done:
                clients.join()  # one that gave up says why, instead of faults that are never due
            faults.run(clients.ended, size.jobs)
            time.sleep(0.05)
        clients.join()
        for client in traffic:
            client.stop()
        _until_settled(made)
        took_s = now() - started
        jobs, entries = console_records(made.stack)
        is_whole, chain = _chain(made)
        engines = []
        for engine in made.engines:
            engine.process.stop()
            folder = engine.process.dir
            engines.append(engine_records(engine.name, DP_SIZE, folder, engine.effect_log))
        records = Records(jobs, entries, engines)
        verdict = judge(clients.asked, records)
        report = {
            "date": dt.datetime.now(dt.UTC).date().isoformat(),
            "machine": _machine(),
            "database": database,
            "seed": size.seed,
            "took_s": round(took_s),
            **_counts(clients, records),
            "kills": {what: n for what, n in sorted(faults.counts.items()) if what != FLUSHALL},
            "flushalls": faults.counts[FLUSHALL],
            "ended_by_themselves_and_restarted": dict(made.revived),
            "traffic": {
                "answered": sum(client.answered for client in traffic),
                "failed": sum(client.failed for client in traffic),
            },
            **_settling(faults, clients.asked),
            **_findings(verdict, records),
            "audit_chain": chain,
        }
    return Ran(verdict, chain, is_whole, report)


def _until_settled(made: Chaos) -> None:
    """All parts are up and no job is open. What stays open is for the oracle to name."""

    def is_quiet() -> bool:
        made.revive()
        states = {state for (state,) in made.stack.sql("SELECT DISTINCT state FROM console_job")}
        return states <= TERMINAL

    with contextlib.suppress(AssertionError):
        wait_until(is_quiet, every_s=0.2)
    for engine in made.engines:
        engine.process.until_serving()
    wait_until(made.stack.is_well)


def _chain(made: Chaos) -> tuple[bool, str]:
    """What bin/audit-verify says of a whole export, with the signed heads and the public key."""
    state = made.stack.dir
    with tempfile.TemporaryDirectory() as folder:
        export = Path(folder) / "export.jsonl"
        answer = made.stack.request("GET", "/audit/export")
        assert answer.status_code == 200, answer.text
        export.write_bytes(answer.content)
        done = subprocess.run(
            [
                *(sys.executable, str(ROOT / "bin" / "audit-verify"), export),
                *(state / "audit-anchors.jsonl", state / "audit-key.pub"),
            ],
            capture_output=True,
            text=True,
        )
    lines = (done.stdout + done.stderr).splitlines()
    said = [line for line in lines if "as it was written" in line or "anchored" in line]
    return done.returncode == 0, "; ".join(said or lines)


def _counts(clients: Clients, records: Records) -> dict[str, Any]:
    ends: dict[str, Counter[str]] = {}
    for job in records.jobs:
        ends.setdefault(job.kind, Counter())[job.state] += 1
    asked = clients.asked
    actions = Counter(entry.action for entry in records.entries)
    claimed = {entry.job_id for entry in records.entries if entry.action == "job.claimed"}
    return {
        "engines": len(records.engines),
        "ranks_an_engine": DP_SIZE,
        "jobs": len(records.jobs),
        "jobs_by_kind_and_end": {kind: dict(sorted(ends[kind].items())) for kind in sorted(ends)},
        "jobs_by_end": dict(sorted(Counter(job.state for job in records.jobs).items())),
        "requests": sum(one.sent for one in asked),
        "requests_refused": sum(bool(one.refused) for one in asked),
        "claimed_again": actions["job.claimed"] - len(claimed),
        "unknown_for_a_while": actions["job.reconciling"],
        "cancels": clients.acts["cancel"],
        "extensions": clients.acts["extend"],
        "effects": sum(len(engine.effects) for engine in records.engines),
    }


def _settling(faults: Faults, asked: list[Asked]) -> dict[str, float]:
    """From a fault until the end of every job that was open then: the longest, and the last."""
    times = []
    for struck in faults.done:
        ends = [
            one.ended_at
            for one in asked
            if one.ended_at is not None and one.begun_at <= struck.at <= one.ended_at
        ]
        times.append(max(ends, default=struck.at) - struck.at)
    return {
        "longest_from_fault_to_settled_s": round(max(times, default=0.0), 1),
        "from_last_fault_to_settled_s": round(times[-1], 1) if times else 0.0,
    }


def _findings(verdict: Verdict, records: Records) -> dict[str, Any]:
    states = Counter(job.state for job in records.jobs)
    return {
        "lost": len(verdict.lost),
        "duplicated": len(verdict.duplicated),
        "untrue": len(verdict.untrue),
        "unknown": states["reconciling"],
        "interrupted": states["interrupted"],
        "findings": [*verdict.lost, *verdict.duplicated, *verdict.untrue][:50],
    }


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
    }


@contextlib.contextmanager
def database_url(database: str) -> Iterator[str]:
    """Where the console keeps its rows; empty is SQLite in its state folder."""
    if database == "sqlite":
        yield ""
        return
    folder = postgres_bin()
    if folder is None:
        raise SystemExit("PostgreSQL is not installed: no initdb in /usr/lib/postgresql or on PATH")
    with postgres(folder) as url:
        yield url


def write(path: Path, report: dict[str, Any]) -> None:
    """Put a run into the file, in the place of the former one with this database."""
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    runs = [run for run in runs if run["database"] != report["database"]] + [report]
    runs.sort(key=lambda run: DATABASES.index(run["database"]))
    path.write_text(json.dumps({"runs": runs}, indent=1) + "\n")


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=50, help="spread over seven kinds of process")
    parser.add_argument("--flushalls", type=int, default=10)
    parser.add_argument("--clients", type=int, default=10, help="jobs open at once")
    parser.add_argument("--database", choices=DATABASES, default="sqlite")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, metavar="FILE", help="such as docs/chaos-jobs.json")
    asked = parser.parse_args()
    size = Size(asked.jobs, asked.kills, asked.flushalls, asked.clients, asked.seed)
    with database_url(asked.database) as url:
        ran = run(size, database=asked.database, database_url=url)
    print(json.dumps(ran.report, indent=1))
    if asked.write:
        write(asked.write, ran.report)
    return 0 if ran.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())

"""What is left after a run, read from where it was written: the console's tables, each engine's
journal and the effect log of its ranks.

The journal is read by a few lines of its own, and not by the code that wrote it.
"""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tests.fakes.stack import Stack

_HEADER = struct.Struct("<II")  # length, CRC-32; length 0 ends the file


@dataclass(frozen=True)
class Job:
    """One row, and what it says of each rank."""

    id: str
    key: str
    engine: str
    kind: str
    state: str
    is_ended: bool
    ranks: dict[int, str]


@dataclass(frozen=True)
class Entry:
    """One audit entry of a job."""

    job_id: str
    stage: str
    action: str  # `job.` and the state that it came to


@dataclass(frozen=True)
class Effect:
    """One line of an effect log."""

    rank: int
    inc: int
    op: int
    what: str  # commit or undo


@dataclass
class EngineRecords:
    """What an engine wrote down: which operation is whose, how it ended, and every effect."""

    name: str
    dp_size: int
    started: list[tuple[int, str]] = field(default_factory=list)  # operation, id of its job
    outcomes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    effects: list[Effect] = field(default_factory=list)


@dataclass
class Records:
    """All of it."""

    jobs: list[Job]
    entries: list[Entry]
    engines: list[EngineRecords]


def journal_records(data: bytes) -> list[dict[str, Any]]:
    """The whole records of a journal, in order. Raises ValueError for one that is damaged."""
    found, at = [], 0
    while at + _HEADER.size <= len(data):
        length, crc = _HEADER.unpack_from(data, at)
        if length == 0:
            break
        payload = data[at + _HEADER.size : at + _HEADER.size + length]
        if len(payload) < length or zlib.crc32(payload) != crc:
            raise ValueError(f"the journal is damaged at byte {at}")
        found.append(msgspec.msgpack.decode(payload))
        at += _HEADER.size + length
    return found


def engine_records(name: str, dp_size: int, folder: Path, effect_log: Path) -> EngineRecords:
    """Read an engine's files. Its processes have ended, or nothing is under way."""
    records = EngineRecords(name, dp_size)
    for record in journal_records((folder / "journal").read_bytes()):
        match record["type"]:
            case "started":
                records.started.append((record["op"], record["op_id"]))
            case "finished":
                result = record["result"]
                records.outcomes[result["op_id"]].append(result["outcome"])
    for line in effect_log.read_text().splitlines():
        said = json.loads(line)
        records.effects.append(Effect(said["rank"], said["inc"], said["op"], said["what"]))
    return records


def console_records(stack: Stack) -> tuple[list[Job], list[Entry]]:
    """The jobs and their audit entries, from the tables themselves."""
    ranks: dict[str, dict[int, str]] = defaultdict(dict)
    for job_id, rank, state in stack.sql(
        "SELECT job_id, dp_rank, state FROM console_jobrankresult ORDER BY job_id"
    ):
        ranks[_plain(job_id)][rank] = state
    jobs = [
        Job(_plain(job_id), key or "", engine, kind, state, bool(ended), ranks[_plain(job_id)])
        for job_id, key, engine, kind, state, ended in stack.sql(
            "SELECT j.id, j.idempotency_key, e.name, j.kind, j.state, j.finished_at"
            " FROM console_job j JOIN console_engine e ON e.id = j.engine_id"
        )
    ]
    entries = [
        Entry(_plain(job_id), stage, action)
        for job_id, stage, action in stack.sql(
            "SELECT job_id, stage, action FROM console_auditentry"
            " WHERE job_id IS NOT NULL ORDER BY seq"
        )
    ]
    return jobs, entries


def _plain(value: object) -> str:
    """A job's id as the engine writes it, whatever the database gives."""
    return str(value if isinstance(value, uuid.UUID) else uuid.UUID(str(value)))

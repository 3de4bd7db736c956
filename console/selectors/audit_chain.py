"""Follow the chain of the audit log through the database, and beside it the signed heads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any  # a record is any JSON object
from uuid import UUID

from console.chain import GENESIS, body_digest, body_read, columns_of, entry_hash, instant
from console.models import AuditEntry, AuditSegment
from console.signing import opened

_ROWS = 2000
_COLUMNS = (
    *("v", "action", "stage", "actor_name", "via", "token_prefix"),
    *("request_id", "engine_name", "kind", "result"),
)


@dataclass(frozen=True)
class ChainFault:
    """What is wrong, and from which entry on nothing can be trusted."""

    seq: int
    why: str


@dataclass
class Followed:
    """How far the chain was followed, and where it leads."""

    seq: int
    hash: str
    fault: ChainFault | None = None


@dataclass(frozen=True)
class Verdict:
    """What a check found. `verified_to` is the last entry that is as it was written."""

    head: int
    verified_to: int
    checked_at: datetime
    anchored_to: int
    anchored_at: str
    fault: ChainFault | None


def newest_segment() -> AuditSegment | None:
    """What was closed last; the log goes on behind it."""
    return AuditSegment.objects.order_by("-last").first()


def log_start() -> tuple[int, str]:
    """What the log begins behind: the last closed segment's head, or nothing."""
    segment = newest_segment()
    return (segment.last, segment.head_hash) if segment else (0, GENESIS.hex())


def follow(start: tuple[int, str], upto: int) -> Followed:
    """Follow the chain from behind `start` to entry `upto`."""
    rows = AuditEntry.objects.filter(seq__gt=start[0], seq__lte=upto).order_by("seq")
    found = Followed(*start)
    before = bytes.fromhex(start[1])
    fields = ("seq", "body", "hash", "created_at", "job_id", *_COLUMNS)
    for seq, body, hash_, created_at, job_id, *columns in rows.values_list(*fields).iterator(_ROWS):
        if seq != found.seq + 1:
            why = f"gap: the next entry there is {seq}"
            found.fault = ChainFault(found.seq + 1, why)
            return found
        before = entry_hash(before, seq, body_digest(body))
        if hash_ != before.hex():
            found.fault = ChainFault(seq, "the hash does not follow from the entries before")
            return found
        if why := _column_fault(body, created_at, job_id, columns):
            found.fault = ChainFault(seq, why)
            return found
        found.seq, found.hash = seq, hash_
    if found.seq < upto:
        found.fault = ChainFault(found.seq + 1, f"gap: nothing is there up to {upto}")
    return found


def _column_fault(body: str, created_at: Any, job_id: UUID | None, columns: list[Any]) -> str:
    """What the log is searched by is what the body says."""
    facts = body_read(body)
    if facts is None:
        return "what is stored is no entry"
    wanted = columns_of(facts)
    for name, value in zip(_COLUMNS, columns, strict=True):
        if value != wanted[name]:
            return f"the column {name} is not what the body says"
    if instant(created_at) != facts["at"]:
        return "the column created_at is not what the body says"
    if (str(job_id) if job_id else None) != facts["job"]:
        return "the column job_id is not what the body says"
    return ""


def anchor_fault(
    anchors: list[Mapping[str, Any]], begin: tuple[int, str]
) -> tuple[Mapping[str, Any] | None, ChainFault | None]:
    """The newest signed head that the log agrees with, and where it does not. The log begins behind
    `begin`, the head of a closed segment, which a head that was signed there has to be."""
    behind, head = begin
    for anchor in anchors:
        if behind and anchor["seq"] == behind and anchor["hash"] != head:
            why = f"the closed segment ends at {behind} with another head than was signed"
            return None, ChainFault(behind + 1, why)
    anchors = [anchor for anchor in anchors if anchor["seq"] > behind]
    numbers = [anchor["seq"] for anchor in anchors]
    there: dict[int, str] = {}
    for at in range(0, len(numbers), 500):
        some = AuditEntry.objects.filter(seq__in=numbers[at : at + 500])
        there |= dict(some.values_list("seq", "hash"))
    good: Mapping[str, Any] | None = None
    for anchor in anchors:
        seq = anchor["seq"]
        if there.get(seq) != anchor["hash"]:
            why = "other entries were signed" if seq in there else "later entries were cut off"
            first = good["seq"] + 1 if good else behind + 1
            return good, ChainFault(first, f"the head of {anchor['at']} was {seq}: {why}")
        good = anchor
    return good, None


def _is_anchor(record: Mapping[str, Any]) -> bool:
    """It has what an anchor has: who holds some key could sign anything."""
    kinds = {"anchor": int, "seq": int, "hash": str, "at": str, "before": str}
    return record.get("anchor") == 1 and all(
        type(record.get(name)) is kind for name, kind in kinds.items()
    )


def anchors_in(lines: Iterable[bytes], public_hex: str) -> list[Mapping[str, Any]] | int:
    """The signed heads, oldest first; or the number of the first line that is not as it was
    written. Each is signed with the key in force, which the one before may have replaced; the
    given key is one of them."""
    anchors: list[Mapping[str, Any]] = []
    before, seq, in_force = "0" * 64, 0, ""
    keys = set()
    for number, line in enumerate(lines, start=1):
        signed = opened(line[:-1], in_force)
        if signed is None or not line.endswith(b"\n") or signed.record.get("before") != before:
            return number
        record, in_force = signed.record, signed.next_key
        if not _is_anchor(record) or record["seq"] < seq:
            return number
        before, seq = hashlib.sha256(line).hexdigest(), record["seq"]
        keys |= {signed.key, signed.next_key}
        anchors.append(record)
    return anchors if public_hex in keys or not anchors else 1

"""Append to the audit log: the only writer of AuditEntry. docs/decisions/0008-audit-bytes.md"""

from __future__ import annotations

import contextlib
import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from uuid import UUID

import rfc8785
from django.db import connection, transaction

from console.actors import Actor
from console.chain import GENESIS, body_digest, columns_of, entry_hash, instant
from console.choices import AuditStage
from console.models import AuditEntry
from console.prepared import Prepared
from console.rows import rows_insert

_LAST = Prepared(lambda: AuditEntry.objects.order_by("-seq").values_list("seq", "hash")[:1])

VERSION = 1
MAX_SAFE_INT = 2**53 - 1

Fact = str | int | float | bool | None | datetime | UUID | Mapping[str, "Fact"] | Sequence["Fact"]


def canonical(fact: Fact) -> object:
    """`fact` in the subset that is stored: no floats, NFC text, times in UTC with microseconds."""
    match fact:
        case None | bool():
            return fact
        case str():
            return unicodedata.normalize("NFC", str(fact))
        case int():
            return fact if abs(fact) <= MAX_SAFE_INT else str(fact)
        case float():
            return repr(fact)
        case datetime():
            return instant(fact)
        case UUID():
            return str(fact)
        case Mapping():
            return {str(canonical(str(key))): canonical(value) for key, value in fact.items()}
        case _:
            return [canonical(value) for value in fact]


def audit_append(
    *,
    action: str,
    stage: AuditStage,
    actor: Actor,
    now: datetime,
    process: str,
    engine_name: str = "",
    job_id: UUID | None = None,
    facts: Mapping[str, Fact],
) -> AuditEntry:
    """Append one entry inside the caller's transaction; call it last, its lock is held until then.

    Raises django.db.IntegrityError for a second outcome of one job.
    """
    assert connection.in_atomic_block, "an audit entry belongs to the transaction of its act"
    body: dict[str, Fact] = {
        "v": VERSION,
        "at": now,
        "action": action,
        "stage": str(stage),
        "process": process,
        "actor": {
            "id": actor.user_id,
            "name": actor.name,
            "via": str(actor.via),
            "token": actor.token_prefix,
            "ip": actor.source_ip,
            "request": actor.request_id,
        },
        "engine": engine_name,
        "job": job_id,
        **facts,
    }
    text = rfc8785.dumps(canonical(body)).decode()  # type: ignore[arg-type]  # its type is private
    columns = columns_of(json.loads(text)) | {"body": text, "created_at": now, "job_id": job_id}
    if connection.vendor == "postgresql":
        return _noted(_insert(columns))  # its trigger locks, numbers and chains
    last = _LAST.first()
    seq, before = (last[0] + 1, bytes.fromhex(last[1])) if last else (1, GENESIS)
    chained = entry_hash(before, seq, body_digest(text)).hex()
    entry = AuditEntry(seq=seq, hash=chained, **columns)
    rows_insert([entry])
    return _noted(entry)


_sequences: ContextVar[list[int] | None] = ContextVar("audit_sequences", default=None)


@contextlib.contextmanager
def entries_noted() -> Iterator[list[int]]:
    """The numbers of the entries that are committed inside."""
    numbers: list[int] = []
    token = _sequences.set(numbers)
    try:
        yield numbers
    finally:
        _sequences.reset(token)


def _noted(entry: AuditEntry) -> AuditEntry:
    numbers = _sequences.get()
    if numbers is not None:
        transaction.on_commit(lambda: numbers.append(entry.seq))
    return entry


def _insert(columns: Mapping[str, object]) -> AuditEntry:
    table, names = AuditEntry._meta.db_table, ["seq", "hash", *columns]
    places = ", ".join(["%s"] * len(names))
    sql = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places}) RETURNING *"  # noqa: S608
    (entry,) = AuditEntry.objects.raw(sql, [0, "", *columns.values()])
    return entry

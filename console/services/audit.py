"""Append to the audit log: the only writer of AuditEntry.

The body's bytes are fixed here (docs/decisions/0008-audit-bytes.md) so that entries can be chained
later without touching them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID

import rfc8785
from django.db import connection
from django.db.models import Max

from console.actors import Actor
from console.choices import AuditStage
from console.models import AuditEntry

VERSION = 1
MAX_SAFE_INT = 2**53 - 1
# Serialises appends on PostgreSQL until the transaction ends; an IMMEDIATE one does on SQLite.
_LOCK_KEY = 0x71756965  # "quie"

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
            return fact.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
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
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK_KEY])
    last = AuditEntry.objects.aggregate(last=Max("seq"))["last"] or 0
    return AuditEntry.objects.create(
        seq=last + 1,
        v=VERSION,
        body=text,
        created_at=now,
        action=action,
        stage=stage,
        actor_name=actor.name,
        engine_name=engine_name,
        job_id=job_id,
    )

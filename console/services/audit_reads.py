"""Note who reads the audit log: once an hour and asker, not at every page of it."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from console.actors import Actor
from console.choices import AuditStage
from console.clock import db_now
from console.models import AuditEntry
from console.services.audit import audit_append

EVERY = timedelta(hours=1)
ACTION = "audit.read"


def audit_read(*, actor: Actor, process: str = "web", now: datetime | None = None) -> None:
    """Record a reading, unless one of the same asker is recorded that is younger than an hour."""
    now = now or db_now()
    before = AuditEntry.objects.filter(
        action=ACTION,
        actor_name=actor.name,
        via=actor.via,
        token_prefix=actor.token_prefix,
        created_at__gt=now - EVERY,
    )
    if before.exists():
        return
    with transaction.atomic():
        audit_append(
            action=ACTION,
            stage=AuditStage.NOTE,
            actor=actor,
            now=now,
            process=process,
            facts={"object": "audit log"},
        )

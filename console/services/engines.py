"""Register engines."""

from __future__ import annotations

from datetime import datetime

from django.core.exceptions import ValidationError
from django.db import transaction

from console.actors import Actor
from console.choices import AuditStage
from console.clock import db_now
from console.exceptions import Invalid
from console.gateways.registry import DRIVERS
from console.models import Engine
from console.services.audit import audit_append

SCHEMES = ("ipc://", "tcp://")


@transaction.atomic
def engine_register(
    *,
    name: str,
    control_address: str,
    events_address: str,
    actor: Actor,
    driver: str = "quiesce",
    enabled: bool = True,
    process: str = "cli",
    now: datetime | None = None,
) -> Engine:
    """Add an engine, or bring the one of that name to these addresses. Raises Invalid."""
    now = now or db_now()
    if driver not in DRIVERS:
        raise Invalid(f"driver must be one of {', '.join(sorted(DRIVERS))}")
    for field, address in (("control", control_address), ("events", events_address)):
        if not address.startswith(SCHEMES) or "*" in address:
            raise Invalid(f"the {field} address must begin with ipc:// or tcp:// and name a host")
    known = Engine.objects.filter(name=name).first()
    engine = known or Engine(name=name, created_at=now)
    wanted = (driver, control_address, events_address, enabled)
    if known and (known.driver, known.control_address, known.events_address, known.enabled) == (
        wanted
    ):
        return known
    engine.driver, engine.control_address, engine.events_address, engine.enabled = wanted
    try:
        engine.full_clean()
    except ValidationError as error:
        raise Invalid("; ".join(error.messages)) from error
    engine.save()
    audit_append(
        action="engine.changed" if known else "engine.registered",
        stage=AuditStage.NOTE,
        actor=actor,
        now=now,
        process=process,
        engine_name=name,
        facts={
            "object": f"engine {name}",
            "driver": driver,
            "control_address": control_address,
            "events_address": events_address,
            "enabled": enabled,
        },
    )
    return engine

"""Register engines, change what is known of them, disable and remove them. All on record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

from django.core.exceptions import ValidationError
from django.db import transaction

from console import notify
from console.access import Act
from console.actors import Actor
from console.choices import OPEN_STATES, AuditStage
from console.clock import db_now
from console.exceptions import AlreadyExists, Conflict, Invalid
from console.gateways.registry import DRIVERS
from console.labels import labels_check, labels_of
from console.models import Engine, Job
from console.selectors.access import labels_of_engine
from console.selectors.engines import engine_named
from console.services.audit import audit_append
from console.services.reasons import reason_read

SCHEMES = ("ipc://", "tcp://")
_TCP = re.compile(r"^tcp://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):([0-9]{1,5})$")
_Z85 = re.compile(r"^[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}$")
_FIELDS = ("driver", "control_address", "events_address", "curve_key", "enabled", "labels")


def _address_check(field: str, address: str, curve_key: str) -> None:
    if not address.startswith(SCHEMES) or "*" in address:
        raise Invalid(f"the {field} address must begin with ipc:// or tcp:// and name a host")
    if address.startswith("tcp://"):
        found = _TCP.match(address)
        if found is None or not 1 <= int(found[2]) <= 65535:
            raise Invalid(f"the {field} address must be tcp://HOST:PORT")
        if not curve_key:
            raise Invalid(f"the {field} address is tcp: it needs the engine's public key")


def _checked(engine: Engine) -> None:
    if engine.driver not in DRIVERS:
        raise Invalid(f"driver must be one of {', '.join(sorted(DRIVERS))}")
    if engine.curve_key and not _Z85.match(engine.curve_key):
        raise Invalid("curve_key must be the engine's public key: 40 characters of Z85")
    _address_check("control", engine.control_address, engine.curve_key)
    _address_check("events", engine.events_address, engine.curve_key)
    try:
        engine.full_clean()
    except ValidationError as error:
        raise Invalid("; ".join(error.messages)) from error


def _note(
    action: str, engine: Engine, actor: Actor, now: datetime, process: str, reason: str
) -> None:
    audit_append(
        action=action,
        stage=AuditStage.NOTE,
        actor=actor,
        now=now,
        process=process,
        engine_name=engine.name,
        facts={
            "object": f"engine {engine.name}",
            **{field: getattr(engine, field) for field in _FIELDS},
            **({"reason": reason} if reason else {}),
        },
    )
    name = engine.name
    transaction.on_commit(lambda: notify.engine_changed(name), robust=True)


@transaction.atomic
def engine_register(
    *,
    name: str,
    control_address: str,
    events_address: str,
    actor: Actor,
    curve_key: str = "",
    driver: str = "quiesce",
    enabled: bool = True,
    labels: Mapping[str, str] | None = None,
    reason: str = "",
    is_new: bool = False,
    process: str = "cli",
    now: datetime | None = None,
) -> Engine:
    """Add an engine, or bring the one of that name to these addresses; without `labels` it keeps
    its own. `is_new`: refuse a name that is there.

    Raises Invalid, Forbidden, AlreadyExists.
    """
    now = now or db_now()
    given = labels_check(labels) if labels is not None else None
    known = Engine.objects.select_for_update(no_key=True).filter(name=name).first()
    is_there = known is not None and known.removed_at is None
    if is_there and known is not None:
        actor.rights.require(Act.ENGINES, labels_of_engine(known))
        if is_new:
            raise AlreadyExists(f"engine {name!r} is registered already")
    engine = known or Engine(name=name, created_at=now)
    kept = engine.labels if is_there else {}
    labels_then = given if given is not None else kept
    actor.rights.require(Act.ENGINES, labels_of(name, labels_then))
    wanted = {
        "driver": driver,
        "control_address": control_address,
        "events_address": events_address,
        "curve_key": curve_key,
        "enabled": enabled,
        "labels": labels_then,
    }
    if is_there and all(getattr(engine, field) == wanted[field] for field in _FIELDS):
        return engine
    for field, value in wanted.items():
        setattr(engine, field, value)
    engine.removed_at = None
    _checked(engine)
    engine.save()
    action = "engine.changed" if is_there else "engine.registered"
    _note(action, engine, actor, now, process, reason_read(reason))
    return engine


@transaction.atomic
def engine_change(
    *,
    name: str,
    actor: Actor,
    enabled: bool | None = None,
    labels: Mapping[str, str] | None = None,
    control_address: str | None = None,
    events_address: str | None = None,
    curve_key: str | None = None,
    reason: str = "",
    process: str = "web",
    now: datetime | None = None,
) -> Engine:
    """Change what is given. A disabled engine takes no job, and nobody listens to it.

    Raises EngineNotFound, Forbidden, Invalid.
    """
    engine = engine_named(name, rights=actor.rights)
    engine = Engine.objects.select_for_update(no_key=True).get(pk=engine.pk)
    given = {
        "enabled": enabled,
        "labels": labels_check(labels) if labels is not None else None,
        "control_address": control_address,
        "events_address": events_address,
        "curve_key": curve_key,
    }
    changed = {
        field: value
        for field, value in given.items()
        if value is not None and getattr(engine, field) != value
    }
    actor.rights.require(Act.ENGINES, labels_of_engine(engine))
    for field, value in changed.items():
        setattr(engine, field, value)
    actor.rights.require(Act.ENGINES, labels_of_engine(engine))  # nor out of one's own group
    reason = reason_read(reason)
    if changed:
        _checked(engine)
        engine.save(update_fields=list(changed))
        _note("engine.changed", engine, actor, now or db_now(), process, reason)
    return engine


@transaction.atomic
def engine_remove(
    *,
    name: str,
    actor: Actor,
    reason: str = "",
    process: str = "web",
    now: datetime | None = None,
) -> None:
    """Take an engine out of the fleet; its jobs and its record stay.

    Raises EngineNotFound, Forbidden, Invalid, Conflict while a job has not ended.
    """
    now = now or db_now()
    engine = engine_named(name, rights=actor.rights)
    actor.rights.require(Act.ENGINES, labels_of_engine(engine))
    engine = Engine.objects.select_for_update(no_key=True).get(pk=engine.pk)
    open_jobs = Job.objects.filter(engine=engine, state__in=OPEN_STATES).count()
    if open_jobs:
        noun = "job has" if open_jobs == 1 else "jobs have"
        raise Conflict(f"{open_jobs} {noun} not ended on engine {name}; cancel or wait first")
    engine.enabled, engine.removed_at = False, now
    engine.save(update_fields=["enabled", "removed_at"])
    _note("engine.removed", engine, actor, now, process, reason_read(reason))

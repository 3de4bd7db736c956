"""Which parts of the console are up."""

from __future__ import annotations

from dataclasses import dataclass

import redis
from django.db import DatabaseError, connection

from console.access import EVERYTHING
from console.clock import monotonic_s
from console.models import Engine
from console.selectors.engines import engine_list
from console.snapshots import PARTS, beats_get

BEAT_MAX_AGE_S = 6.0
PARTS_KEPT_S = 0.25

_lately: tuple[float, dict[str, bool]] = (float("-inf"), {})


@dataclass(frozen=True)
class Health:
    """`parts` by name, each up or not; the web process itself is live when it answers."""

    parts: dict[str, bool]
    engines: dict[str, bool]

    @property
    def is_well(self) -> bool:
        """True when every part is up; an engine that is down is not the console's illness."""
        return all(self.parts.values())


def parts_read() -> dict[str, bool]:
    """Redis and who says there that they live, each up or not; a second at most."""
    try:
        ages = beats_get()
    except redis.RedisError:
        return dict.fromkeys(("redis", *PARTS), False)
    lives = {part: age is not None and age < BEAT_MAX_AGE_S for part, age in ages.items()}
    return {"redis": True, **lives}


def parts_lately() -> dict[str, bool]:
    """As `parts_read`, so old at most as PARTS_KEPT_S: for what is read often, and again."""
    global _lately
    read_at_s, parts = _lately
    now = monotonic_s()
    if not 0 <= now - read_at_s < PARTS_KEPT_S:
        parts = parts_read()
        _lately = now, parts
    return parts


def health_read() -> Health:
    """Ask each part, bounded: a second for Redis, the database's own timeout for it."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return Health(parts=dict.fromkeys(("database", "redis", *PARTS), False), engines={})
    parts = {"database": True, **parts_read()}
    if parts["redis"]:
        engines = {view.name: view.online for view in engine_list(rights=EVERYTHING)}
    else:
        engines = dict.fromkeys(Engine.objects.values_list("name", flat=True), False)
    return Health(parts=parts, engines=engines)

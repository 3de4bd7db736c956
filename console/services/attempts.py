"""Record what was asked for and not done: denied, invalid, refused; and who came and went."""

from __future__ import annotations

import time
from collections import OrderedDict
from datetime import datetime

from django.db import transaction

from console.actors import Actor
from console.choices import AuditStage
from console.clock import db_now
from console.services.audit import Fact, audit_append

ANONYMOUS_EVERY_S = 60.0
_MAX_KEPT = 1000


def attempt_note(
    *, action: str, result: str, actor: Actor, facts: dict[str, Fact], now: datetime | None = None
) -> None:
    """Append an entry for an attempt, in a transaction of its own. Raises DatabaseError."""
    with transaction.atomic():
        audit_append(
            action=action,
            stage=AuditStage.NOTE,
            actor=actor,
            now=now or db_now(),
            process="web",
            engine_name=str(facts.pop("engine", "")),
            facts={"result": result, **facts},
        )


class Coalesced:
    """Lets one of many equal attempts of strangers through a minute, so that nobody can fill the
    log without a log-in; the next entry says how many were left out."""

    def __init__(self, every_s: float = ANONYMOUS_EVERY_S) -> None:
        self._every_s = every_s
        self._seen: OrderedDict[tuple[str, ...], tuple[float, int]] = OrderedDict()

    def left_out(self, key: tuple[str, ...]) -> int | None:
        """How many were left out since the last one; None for one to leave out."""
        now = time.monotonic()
        since, count = self._seen.get(key, (-self._every_s, 0))
        if now - since < self._every_s:
            self._seen[key] = (since, count + 1)
            return None
        self._seen[key] = (now, 0)
        self._seen.move_to_end(key)
        while len(self._seen) > _MAX_KEPT:
            self._seen.popitem(last=False)
        return count

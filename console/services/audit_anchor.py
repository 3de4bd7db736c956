"""Sign the head of the audit log, by and by, into a file outside the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from console.chain import instant
from console.clock import db_now
from console.models import AuditEntry
from console.services.audit_key import anchors_held


@dataclass(frozen=True)
class Anchor:
    """A head that was signed."""

    seq: int
    hash: str
    at: str


def audit_anchor(now: datetime | None = None) -> Anchor | None:
    """Sign the head if it has moved since the last time; returns the newest anchor.

    Raises AuditUnavailable where the file or the key cannot be used.
    """
    head = AuditEntry.objects.order_by("-seq").values_list("seq", "hash").first()
    with anchors_held() as anchors:
        last, before = anchors.last()
        if head is not None and (last is None or head[0] > last["seq"]):
            last = {
                "anchor": 1,
                "seq": head[0],
                "hash": head[1],
                "at": instant(now or db_now()),
                "before": before,
            }
            anchors.append(last)
    return Anchor(last["seq"], last["hash"], last["at"]) if last is not None else None

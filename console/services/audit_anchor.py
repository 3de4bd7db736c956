"""Sign the head of the audit log, by and by, into a file outside the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any  # a record is any JSON object

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
    head = audit_head()
    with anchors_held() as anchors:
        last, before = anchors.last()
        if head is not None and (last is None or head[0] > last["seq"]):
            last = anchor_record(head, now or db_now(), before)
            anchors.append(last)
    return Anchor(last["seq"], last["hash"], last["at"]) if last is not None else None


def audit_head() -> tuple[int, str] | None:
    """Number and hash of the newest entry."""
    return AuditEntry.objects.order_by("-seq").values_list("seq", "hash").first()


def anchor_record(head: tuple[int, str], at: datetime, before: str) -> dict[str, Any]:
    """What is signed: the head, behind the line with the SHA-256 `before`."""
    seq, digest = head
    return {"anchor": 1, "seq": seq, "hash": digest, "at": instant(at), "before": before}

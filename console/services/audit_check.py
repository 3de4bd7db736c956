"""Check the audit log against itself and against the heads that were signed; remember how far."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any  # an anchor is a JSON object

from django.conf import settings

from console.access import Act, Rights
from console.clock import db_now
from console.exceptions import AuditUnavailable
from console.models import AuditCheck, AuditEntry
from console.selectors.audit_chain import (
    ChainFault,
    Followed,
    Verdict,
    anchor_fault,
    anchors_in,
    follow,
    log_start,
)
from console.services.audit_key import signer


def audit_check(*, rights: Rights, is_full: bool = False, now: datetime | None = None) -> Verdict:
    """Check what is new since the last time, or all of it. A fault stays until all of it was
    checked again and is right. Raises Forbidden, AuditUnavailable without the key."""
    rights.require(Act.AUDIT)
    now = now or db_now()
    head = AuditEntry.objects.order_by("-seq").values_list("seq", flat=True).first() or 0
    begin = log_start()
    start, fault = (begin, None) if is_full else _kept(begin)
    found = follow(start, max(head, start[0])) if fault is None else Followed(*start, fault)
    signed, anchored = _anchored(begin)
    faults = [one for one in (found.fault, anchored) if one is not None]
    fault = min(faults, key=lambda one: one.seq, default=None)
    verdict = Verdict(
        head=head,
        verified_to=min(found.seq, fault.seq - 1) if fault else found.seq,
        checked_at=now,
        anchored_to=signed["seq"] if signed else begin[0],
        anchored_at=signed["at"] if signed else "",
        fault=fault,
    )
    AuditCheck.objects.update_or_create(
        pk=1,
        defaults={
            "head": head,
            "seq": verdict.verified_to,
            "hash": found.hash,
            "checked_at": now,
            "anchored_to": verdict.anchored_to,
            "anchored_at": verdict.anchored_at,
            "fault_seq": fault.seq if fault else 0,
            "fault": fault.why if fault else "",
        },
    )
    return verdict


def _kept(begin: tuple[int, str]) -> tuple[tuple[int, str], ChainFault | None]:
    """Where the last check ended, and what it found."""
    kept = AuditCheck.objects.filter(pk=1).first()
    if kept is None or (kept.seq <= begin[0] and not kept.fault):
        return begin, None
    start = (kept.seq, kept.hash)
    if kept.fault:
        return start, ChainFault(kept.fault_seq, kept.fault)
    if not AuditEntry.objects.filter(seq=kept.seq, hash=kept.hash).exists():
        return start, ChainFault(kept.seq, "it was another entry when it was checked before")
    return start, None


def _anchored(begin: tuple[int, str]) -> tuple[Mapping[str, Any] | None, ChainFault | None]:
    try:
        with settings.AUDIT_ANCHORS_FILE.open("rb") as file:
            anchors = anchors_in(file, signer().public_hex)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        raise AuditUnavailable(f"the anchors cannot be read: {error.strerror}") from error
    if isinstance(anchors, int):
        return None, ChainFault(begin[0] + 1, f"line {anchors} of the anchors was changed")
    return anchor_fault(anchors, begin)

"""Read the audit log; the body is parsed for showing only, its text is the truth."""

from __future__ import annotations

import json
from typing import Any  # a parsed body is any JSON object
from uuid import UUID

from django.db.models import Max

from console.exceptions import Invalid, NotFound
from console.models import AuditEntry
from console.selectors.jobs import PAGE_ITEMS, Page, cursor_decode, cursor_encode


def audit_body(entry: AuditEntry) -> dict[str, Any]:
    """The entry's body, parsed."""
    body = json.loads(entry.body)
    assert isinstance(body, dict), body
    return body


def audit_list(
    *, cursor: str | None = None, job_id: UUID | None = None, limit: int = PAGE_ITEMS
) -> Page[AuditEntry]:
    """A page of entries, newest first. Raises Invalid for a bad cursor."""
    rows = AuditEntry.objects.order_by("-seq")
    if job_id is not None:
        rows = rows.filter(job_id=job_id)
    if cursor is not None:
        (seq,) = cursor_decode(cursor, 1)
        if not seq.isascii() or not seq.isdigit() or len(seq) > 18:
            raise Invalid("cursor is not one that this list gave")
        rows = rows.filter(seq__lt=int(seq))
    items = list(rows[: limit + 1])
    more = len(items) > limit
    items = items[:limit]
    return Page(items=items, next_cursor=cursor_encode(str(items[-1].seq)) if more else None)


def audit_get(*, seq: int) -> AuditEntry:
    """One entry. Raises NotFound."""
    entry = AuditEntry.objects.filter(seq=seq).first()
    if entry is None:
        raise NotFound(f"the audit log has no entry {seq}")
    return entry


def audit_of_job(*, job_id: UUID) -> list[AuditEntry]:
    """A job's entries, oldest first: its timeline."""
    return list(AuditEntry.objects.filter(job_id=job_id).order_by("seq"))


def audit_head() -> int:
    """The newest seq; 0 when there is none."""
    return AuditEntry.objects.aggregate(last=Max("seq"))["last"] or 0

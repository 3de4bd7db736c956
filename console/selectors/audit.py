"""Read the audit log; the body is parsed for showing only, its text is the truth."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any  # a parsed body is any JSON object
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import QuerySet

from console.access import Act, Rights
from console.chain import body_read, instant
from console.exceptions import Invalid, NotFound
from console.models import AuditEntry
from console.prepared import Prepared
from console.selectors.access import engines_with
from console.selectors.jobs import PAGE_ITEMS, Page, cursor_decode, cursor_encode

_OF_JOB = Prepared(lambda job: AuditEntry.objects.filter(job_id=job).order_by("seq"), UUID)
_HEAD = Prepared(lambda: AuditEntry.objects.order_by("-seq").values_list("seq")[:1])


def audit_body(entry: AuditEntry) -> dict[str, Any]:
    """The entry's body, parsed; what no console wrote is named as that, and shown as bytes."""
    return body_read(entry.body) or {"actor": {}, "note": "what is stored here is no entry"}


@dataclass(frozen=True)
class AuditFilter:
    """What to look for; empty fields ask for nothing. Searched by the database."""

    actor: str = ""
    token: str = ""  # its prefix, with or without qsc_
    via: str = ""
    engine: str = ""
    kind: str = ""
    action: str = ""  # whole, or its first words with a dot at the end: "job."
    result: str = ""
    request: str = ""
    job: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None  # not itself

    def rows(self, among: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
        """The entries among these that fit, in no order."""
        wanted: dict[str, object] = {
            "actor_name": self.actor,
            "token_prefix": f"qsc_{self.token.removeprefix('qsc_')}" if self.token else "",
            "via": self.via,
            "engine_name": self.engine,
            "kind": self.kind,
            "action__startswith" if self.action.endswith(".") else "action": self.action,
            "result": self.result,
            "request_id": self.request,
            "job_id": self.job,
            "created_at__gte": self.since,
            "created_at__lt": self.until,
        }
        return among.filter(**{name: value for name, value in wanted.items() if value})

    def fields(self) -> dict[str, str]:
        """What is asked for, as text: the filter's part of a URL."""
        return {
            name: instant(value) if isinstance(value, datetime) else str(value)
            for name, value in asdict(self).items()
            if value
        }

    def as_text(self) -> str:
        """One line; "" for everything."""
        return urlencode(self.fields())


FILTER_NAMES = tuple(field.name for field in fields(AuditFilter))


def audit_rows(rights: Rights) -> QuerySet[AuditEntry]:
    """The entries that one may read: all, or with a role on a group those of its engines.

    Raises Forbidden.
    """
    rights.require(Act.AUDIT)
    if rights.may_everywhere(Act.AUDIT):
        return AuditEntry.objects.all()
    names = engines_with(rights, Act.AUDIT, removed=True).values_list("name", flat=True)
    return AuditEntry.objects.filter(engine_name__in=list(names))


def audit_list(
    *,
    rights: Rights,
    chosen: AuditFilter | None = None,
    cursor: str | None = None,
    limit: int = PAGE_ITEMS,
) -> Page[AuditEntry]:
    """A page of entries, newest first. Raises Invalid for a bad cursor, Forbidden."""
    rows = (chosen or AuditFilter()).rows(audit_rows(rights)).order_by("-seq")
    if cursor is not None:
        (seq,) = cursor_decode(cursor, 1)
        if not seq.isascii() or not seq.isdigit() or len(seq) > 18:
            raise Invalid("cursor is not one that this list gave")
        rows = rows.filter(seq__lt=int(seq))
    items = list(rows[: limit + 1])
    more = len(items) > limit
    items = items[:limit]
    return Page(items=items, next_cursor=cursor_encode(str(items[-1].seq)) if more else None)


def audit_get(*, seq: int, rights: Rights) -> AuditEntry:
    """One entry. Raises NotFound, Forbidden."""
    entry = audit_rows(rights).filter(seq=seq).first()
    if entry is None:
        raise NotFound(f"the audit log has no entry {seq}")
    return entry


def audit_of_job(*, job_id: UUID) -> list[AuditEntry]:
    """A job's entries, oldest first: its timeline."""
    return _OF_JOB.all(job_id)


def audit_head() -> int:
    """The newest seq; 0 when there is none."""
    found = _HEAD.first()
    return found[0] if found is not None else 0

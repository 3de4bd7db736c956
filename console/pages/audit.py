"""The audit log: the list and one entry. Reading it writes nothing."""

from __future__ import annotations

import json
from typing import Any  # a parsed body is any JSON object
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from console.choices import Via
from console.exceptions import Invalid
from console.models import AuditEntry
from console.pages.audit_words import entry_reason, entry_sentence, entry_word
from console.pages.shell import page, page_render
from console.selectors.audit import audit_body, audit_get, audit_head, audit_list, audit_of_job
from console.templatetags.q_tags import short


def _via(actor: dict[str, Any]) -> str:
    via = str(actor.get("via", ""))
    return str(Via(via).label) if via in Via.values else via


def _row(entry: AuditEntry) -> dict[str, object]:
    body = audit_body(entry)
    actor = body.get("actor", {})
    return {
        "entry": entry,
        "word": entry_word(entry),
        "reason": entry_reason(entry),
        "via": _via(actor),
        "token": actor.get("token", ""),
        "request": str(actor.get("request", ""))[:8],
        "job_short": short(entry.job_id) if entry.job_id else "",
    }


@page
@require_safe
def audit(request: HttpRequest) -> HttpResponse:
    """A page of entries, newest first; of one job when asked."""
    job_text = request.GET.get("job", "")
    try:
        job_id = UUID(job_text) if job_text else None
    except ValueError as error:
        raise Invalid("job must be a job's id") from error
    cursor = request.GET.get("cursor") or None
    found = audit_list(cursor=cursor, job_id=job_id)
    return page_render(
        request,
        "audit.html",
        nav="audit",
        title="Audit log",
        context={
            "page": found,
            "rows": [_row(entry) for entry in found.items],
            "head": audit_head(),
            "job_id": job_id,
            "job_short": short(job_id) if job_id else "",
            "cursor": cursor,
        },
    )


@page
@require_safe
def audit_entry(request: HttpRequest, seq: int) -> HttpResponse:
    """One entry: its columns in words, and its stored bytes."""
    entry = audit_get(seq=seq)
    body = audit_body(entry)
    known = {"v", "at", "action", "stage", "process", "actor", "engine", "job", "ranks"}
    facts = [
        (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in body.items()
        if name not in known and value not in (None, "")
    ]
    return page_render(
        request,
        "audit_entry.html",
        nav="audit",
        title=f"Audit entry {entry.seq}",
        context={
            "entry": entry,
            "word": entry_word(entry),
            "sentence": entry_sentence(entry),
            "actor": body.get("actor", {}),
            "via": _via(body.get("actor", {})),
            "process": body.get("process", ""),
            "facts": facts,
            "ranks": body.get("ranks", []),
            "same_job": audit_of_job(job_id=entry.job_id) if entry.job_id else [],
            "job_short": short(entry.job_id) if entry.job_id else "",
            "size_bytes": len(entry.body.encode()),
        },
    )

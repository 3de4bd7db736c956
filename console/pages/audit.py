"""The audit log: a search, one entry, an export, and whether all is as it was written."""

from __future__ import annotations

import json
from typing import Any  # a parsed body is any JSON object

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from console.access import Act
from console.choices import Via
from console.downloads import streamed
from console.exceptions import Invalid
from console.models import AuditEntry, AuditSegment
from console.pages.asking import sentence
from console.pages.audit_chain import check_steps, check_view, newest_anchors, rank_changes
from console.pages.audit_search import search_read, search_text
from console.pages.audit_words import entry_sentence, entry_word, reason_in
from console.pages.shell import page, page_render, see_other
from console.requests import actor_of, rights_in
from console.selectors.audit import (
    FILTER_NAMES,
    AuditFilter,
    audit_body,
    audit_get,
    audit_head,
    audit_list,
    audit_of_job,
    audit_rows,
)
from console.services.audit_check import audit_check
from console.services.audit_export import EXPORT_TYPES, audit_export
from console.services.audit_reads import audit_read
from console.templatetags.q_tags import short

# What a result can be searched by, most asked for first.
RESULTS = (
    *("succeeded", "failed", "partial", "expired", "cancelled", "interrupted"),
    *("denied", "refused", "recorded"),
)


def _via(actor: dict[str, Any]) -> str:
    via = str(actor.get("via", ""))
    return str(Via(via).label) if via in Via.values else via


def _row(entry: AuditEntry) -> dict[str, object]:
    body = audit_body(entry)
    actor = body.get("actor", {})
    return {
        "entry": entry,
        "word": entry_word(entry),
        "reason": reason_in(body),
        "via": _via(actor),
        "token": actor.get("token", ""),
        "request": str(actor.get("request", ""))[:8],
        "job_short": short(entry.job_id) if entry.job_id else "",
    }


@page
@require_safe
def audit(request: HttpRequest) -> HttpResponse:
    """A page of the entries that a search finds, newest first."""
    actor = actor_of(request, via=Via.UI)
    text = request.GET.get("q", "").strip()
    job_text = request.GET.get("job", "")  # links of before there was a search
    chosen, wrong, found = AuditFilter(), "", None
    cursor = request.GET.get("cursor") or None
    try:
        chosen = search_read(text or (f"job:{job_text}" if job_text else ""))
        found = audit_list(rights=actor.rights, cursor=cursor, chosen=chosen)
    except Invalid as error:
        wrong = sentence(error.message)
    audit_read(actor=actor)
    return page_render(
        request,
        "audit.html",
        nav="audit",
        title="Audit log",
        context={
            "page": found,
            "rows": [_row(entry) for entry in found.items] if found else [],
            "head": audit_head(),
            "q": text or search_text(chosen),
            "wrong": wrong,
            "fields": FILTER_NAMES,
            "results": RESULTS,
            "cursor": cursor,
            "check": check_view(),
            "segments": list(AuditSegment.objects.order_by("-last")),
        },
        status=422 if wrong else 200,
    )


@page
@require_safe
def audit_export_file(request: HttpRequest) -> HttpResponseBase:
    """What the search finds, as a file."""
    form = request.GET.get("form", "jsonl")
    if form not in EXPORT_TYPES:
        raise Invalid("form must be jsonl or csv")
    chosen = search_read(request.GET.get("q", ""))
    made = audit_export(chosen=chosen, actor=actor_of(request, via=Via.UI), form=form)
    return streamed(
        request,
        made.pieces(form),
        content_type=EXPORT_TYPES[form],
        file_name=made.file_name(form),
    )


@page
@require_http_methods(["GET", "HEAD", "POST"])
def audit_verify(request: HttpRequest) -> HttpResponseBase:
    """What the last check found; POST checks all of the log now."""
    if request.method == "POST":
        audit_check(rights=rights_in(request), is_full=True)
        return see_other(reverse("audit-verify"))
    rights_in(request).require(Act.AUDIT)
    view = check_view()
    return page_render(
        request,
        "audit_verify.html",
        nav="audit",
        title="Verify the audit log",
        context={"check": view, "steps": check_steps(view), "anchors": newest_anchors()},
    )


@page
@require_safe
def audit_entry(request: HttpRequest, seq: int) -> HttpResponse:
    """One entry: its columns in words, and its stored bytes."""
    actor = actor_of(request, via=Via.UI)
    entry = audit_get(seq=seq, rights=actor.rights)
    audit_read(actor=actor)
    body, readable = audit_body(entry), audit_rows(actor.rights)
    known = {"v", "at", "action", "stage", "process", "actor", "engine", "job", "ranks"}
    known |= {"kind", "result"}
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
            "before": readable.filter(seq=seq - 1).first(),
            "after": readable.filter(seq=seq + 1).first(),
            "check": check_view(),
            "changes": rank_changes(body.get("ranks", [])),
            "size_bytes": len(entry.body.encode()),
        },
    )

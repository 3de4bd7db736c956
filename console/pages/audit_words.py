"""Audit entries in words: the sentence of a timeline, the state word of a row."""

from __future__ import annotations

from typing import Any  # a parsed body is any JSON object

from django.utils.html import format_html
from django.utils.safestring import SafeString

from console.choices import AuditStage
from console.models import AuditEntry
from console.selectors.audit import audit_body
from console.templatetags.q_tags import STATES

_SENTENCES = {
    "job.accepted": "asked",
    "job.claimed": "taken by a worker",
    "job.dispatched": "recorded as sent, then sent to the engine",
    "job.reconciling": "reply lost: the engine’s journal is asked",
    "job.succeeded": "succeeded",
    "job.failed": "failed",
    "job.partial": "partial",
    "job.expired": "expired",
    "job.cancelled": "cancelled",
    "job.interrupted": "interrupted",
    "job.cancel_requested": "cancel asked",
    "job.cancel_refused": "cancel refused by the engine",
    "job.extend_requested": "extension asked",
    "job.extend_refused": "extension refused by the engine",
    "job.extended": "deadline moved",
    "job.force_requested": "force asked",
    "job.force_refused": "force refused by the engine",
    "job.forced": "forced",
}


def reason_in(body: dict[str, Any]) -> str:
    """Why, as far as the entry itself says it: an error, a note, a reason, a number."""
    error = body.get("error")
    if isinstance(error, dict) and error.get("message"):
        return str(error["message"])
    for name in ("message", "note", "why", "cancel_reason", "reason"):
        if body.get(name):
            return str(body[name])
    if body.get("code"):
        return f"{body.get('object', '')}: {body['code']}"
    if body.get("by_s"):
        return f"by {body['by_s']} s"
    if body.get("to"):
        return f"{body.get('mode', '')} → {body['to']}"
    return ""


def entry_sentence(entry: AuditEntry) -> SafeString:
    """What happened, by whom, and why."""
    body = audit_body(entry)
    if entry.stage == AuditStage.OUTCOME:
        body.pop("reason", None)  # of the asking, not of the end
    more = reason_in(body)
    return format_html(
        '{} <span class="muted">by {}{}</span>',
        _SENTENCES.get(entry.action, entry.action),
        entry.actor_name,
        f": {more}" if more else "",
    )


def entry_word(entry: AuditEntry) -> str:
    """The state word of an entry: its job's new state, its result, or `recorded`."""
    if entry.result in ("denied", "refused", "failed"):
        return entry.result
    tail = entry.action.rpartition(".")[2]
    if tail.endswith("_refused"):
        return "refused"
    if tail in STATES and tail not in ("recorded",):
        return tail
    return {"accepted": "queued", "reconciling": "unknown"}.get(tail, "recorded")

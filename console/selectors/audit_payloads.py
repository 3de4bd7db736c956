"""The audit log as JSON: entries, its head, and what a check of it found."""

from __future__ import annotations

from typing import Any  # JSON objects

from console.access import Act, Rights
from console.chain import GENESIS
from console.models import AuditCheck, AuditEntry, AuditSegment
from console.selectors.audit import audit_body
from console.selectors.audit_chain import Verdict
from console.selectors.payloads import when


def audit_payload(entry: AuditEntry) -> dict[str, Any]:
    """One entry: its indexes, and the body both parsed and as the stored text."""
    return {
        "seq": entry.seq,
        "v": entry.v,
        "hash": entry.hash,
        "created_at": when(entry.created_at),
        "action": entry.action,
        "stage": entry.stage,
        "kind": entry.kind or None,
        "result": entry.result,
        "actor": entry.actor_name,
        "via": entry.via,
        "token": entry.token_prefix or None,
        "request_id": entry.request_id or None,
        "engine": entry.engine_name or None,
        "job": str(entry.job_id) if entry.job_id else None,
        "body": audit_body(entry),
        "body_text": entry.body,
    }


def audit_head_payload(public_key: str, *, rights: Rights) -> dict[str, Any]:
    """The newest entry and what was signed of the log. Raises Forbidden."""
    rights.require(Act.AUDIT)
    head = AuditEntry.objects.order_by("-seq").first()
    check = AuditCheck.objects.filter(pk=1).first()
    return {
        "seq": head.seq if head else 0,
        "hash": head.hash if head else GENESIS.hex(),
        "anchored_seq": check.anchored_to if check else 0,
        "anchored_at": (check.anchored_at or None) if check else None,
        "public_key": public_key,
        "segments": [
            {
                "first": segment.first,
                "last": segment.last,
                "closed_at": when(segment.closed_at),
                "closed_by": segment.closed_by,
                "file": segment.file_name,
                "sha256": segment.file_digest,
            }
            for segment in AuditSegment.objects.order_by("first")
        ],
    }


def audit_verdict_payload(verdict: Verdict) -> dict[str, Any]:
    """What a check of the log found."""
    fault = verdict.fault
    return {
        "head": verdict.head,
        "verified_to": verdict.verified_to,
        "checked_at": when(verdict.checked_at),
        "anchored_to": verdict.anchored_to,
        "anchored_at": verdict.anchored_at or None,
        "ok": fault is None,
        "fault_seq": fault.seq if fault else None,
        "fault": fault.why if fault else None,
    }

"""Jobs, engines and entries as JSON: one form for the REST API and for live messages."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any  # JSON objects

import msgspec
from django.conf import settings

from console.choices import WEIGHT_UPDATES, JobState
from console.models import Job, Upload
from console.params.settings import about_of
from console.selectors.engines import EngineView, PendingOperation
from console.selectors.history import Span
from console.selectors.plans import Plan
from console.selectors.storage import Attached, attached_of, policies_of
from console.selectors.uploads import upload_offset
from engine.protocol import (
    EXPERIMENTAL_BACKENDS,
    PLACES,
    CheckpointList,
    Places,
    RankView,
    StorageBackend,
    fields_of,
)

API = "/api/v1"


def when(moment: datetime | None) -> str | None:
    """ISO 8601 in UTC with milliseconds, or null."""
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _places(places: Places | None) -> dict[str, int] | None:
    return None if places is None else {name: getattr(places, name) for name in PLACES}


def _struct(value: msgspec.Struct | None) -> dict[str, Any] | None:
    return None if value is None else msgspec.to_builtins(value)


def job_payload(job: Job) -> dict[str, Any]:
    """One job; it needs `engine` and `ranks` loaded."""
    url = f"{API}/jobs/{job.pk}"
    return {
        "id": str(job.pk),
        "engine": job.engine.name,
        "kind": job.kind,
        "params": job.params,
        "state": job.state,
        "phase": job.phase,
        "reason": job.reason,
        "requested_by": job.requested_by_name,
        "via": job.via,
        "created_at": when(job.created_at),
        "started_at": when(job.dispatched_at),
        "finished_at": when(job.finished_at),
        "deadline_at": when(job.deadline_at),
        "ranks": [
            {
                "dp_rank": rank.dp_rank,
                "state": rank.state,
                "message": rank.message,
                "staging": rank.staging,
                "effect_s": rank.effect_s,
                "interrupted": rank.interrupted,
            }
            for rank in job.ranks.all()
        ],
        "error": job.error,
        "problem": job_problem(job),
        "mode": job.mode,
        "attempt": job.attempt,
        "blocked_by": job.blocked_by or None,
        "cancel_requested": job.cancel_requested and job.finished_at is None,
        "sent_bytes": job.sent_bytes,
        "total_bytes": job.total_bytes,
        "note": job.note,
        "reply": job.reply,
        "version": job.version,
        "origin": {"job": str(job.origin_id), "follow": job.follow} if job.origin_id else None,
        "followers": [
            {"job": str(one.pk), "follow": one.follow}
            for one in sorted(job.followers.all(), key=lambda one: (one.created_at, one.pk))
        ],
        "links": {
            "self": url,
            "retry": f"{url}/retry",
            "undo": f"{url}/undo",
            "cancel": f"{url}/cancel",
            "extend": f"{url}/extend",
            "force": f"{url}/force",
            "engine": f"{API}/engines/{job.engine.name}",
            "audit": f"{API}/audit?job={job.pk}",
            "page": f"/jobs/{job.pk}",
        },
    }


def job_problem(job: Job) -> dict[str, Any] | None:
    """Why an ended job did not succeed, as a problem document with an entry a rank (RFC 9457)."""
    if job.finished_at is None or job.state == JobState.SUCCEEDED:
        return None
    error = job.error or {}
    code = error.get("code") or job.state
    return {
        "type": f"urn:quiesce:problem:{code}",
        "title": f"{job.get_kind_display()}: {job.state}",
        "status": 409,
        "detail": error.get("message") or job.note or f"the job ended {job.state}",
        "code": code,
        "instance": f"{API}/jobs/{job.pk}",
        "ranks": [
            {"dp_rank": rank.dp_rank, "state": rank.state, "detail": rank.message}
            for rank in job.ranks.all()
        ],
    }


def _rank(rank: RankView, is_engine_online: bool) -> dict[str, Any]:
    is_online = rank.online and is_engine_online
    return {
        "dp_rank": rank.dp_rank,
        "online": is_online,
        "idle": rank.idle if is_online else None,  # what it was is in `places`, not what it is
        "places": _places(rank.places),
        "weight_version": rank.weight_version,
        "weight_checksum": rank.weight_checksum,
        "condition": rank.condition,
        "note": rank.note,
        "staging": _struct(rank.staging),
        "storage_backend": rank.storage_backend,
        "host": _struct(rank.host),
        "storage": _struct(rank.storage),
        "kv": None
        if rank.kv is None
        else {**msgspec.structs.asdict(rank.kv), "used_pages": rank.kv.used_pages},
        "proven": rank.proven,
        "running": rank.running,
        "waiting": rank.waiting,
        "hit_rate": rank.hit_rate,
        "decode_tokens_per_s": rank.decode_tokens_per_s,
        "prefill_tokens_per_s": rank.prefill_tokens_per_s,
        "violations": rank.violations,
    }


def _pending(pending: PendingOperation | None) -> dict[str, Any] | None:
    if pending is None:
        return None
    view = pending.view
    return {
        "op_id": view.op_id,
        "job_id": str(pending.job_id) if pending.job_id else None,
        "kind": str(view.kind),
        "mode": str(view.mode),
        "phase": str(view.phase),
        "attempt": view.attempt,
        "timeout_s": view.timeout_s,
        "remaining_s": view.remaining_s,
        "deadline_at": when(pending.deadline_at),
        "held_requests": view.held_requests,
        "awaited_ranks": view.awaited_ranks,
        "ranks": [
            {
                "dp_rank": rank.dp_rank,
                "state": str(rank.state),
                "message": rank.message,
                "places": _places(rank.places),
            }
            for rank in view.ranks
        ],
        "requested_by": view.requested_by,
    }


def attached_payload(attached: Attached | None) -> dict[str, Any] | None:
    """A backend and its settings, secrets as fingerprints."""
    return None if attached is None else asdict(attached)


def engine_payload(view: EngineView) -> dict[str, Any]:
    """One engine as last observed. Ages are the reader's to count from `observed_at`."""
    state = view.state
    return {
        "name": view.name,
        "driver": view.engine.driver,
        "enabled": view.engine.enabled,
        "labels": view.engine.labels,
        "control_address": view.engine.control_address,
        "events_address": view.engine.events_address,
        "curve_key": view.engine.curve_key or None,
        "online": view.online,
        "epoch": state.epoch if state else None,
        "seq": state.seq if state else None,
        "observed_at": when(view.observed_at),
        "idle": view.idle,
        "places": _places(view.places),
        "pending_operation": _pending(view.pending),
        "ranks": [_rank(rank, view.online) for rank in view.ranks],
        "model": state.model if state else None,
        "engine_version": state.version if state else None,
        "http_address": state.http_address if state else None,
        "held_requests": state.held_requests if state else None,
        "weights": _struct(state.weights) if state else None,
        "weights_roots": [_struct(root) for root in state.weights_roots] if state else [],
        "paused": str(state.paused) if state and state.paused else None,
        "released": [str(tag) for tag in state.released] if state else [],
        "needs_weights": state.needs_weights if state else None,
        "storage": attached_payload(attached_of(view)),
        "policies": policies_of(state.policies) if state else None,
        "hierarchical": state.hierarchical if state else None,
        "host_layout": str(state.host_layout) if state else None,
        "storage_roots": [_struct(root) for root in state.storage_roots] if state else [],
        "backends": [_struct(one) for one in state.backends] if state else [],
        "note": view.note if not view.online else "",
        "version": view.version,
        "links": {
            "self": f"{API}/engines/{view.name}",
            "page": f"/engines/{view.name}",
            "checkpoints": f"{API}/engines/{view.name}/checkpoints",
        },
    }


def is_final(job: Job) -> bool:
    """True when nothing about the job will change any more."""
    return job.finished_at is not None and job.state != JobState.RECONCILING


def checkpoints_payload(found: CheckpointList) -> dict[str, Any]:
    """The roots and folders as an engine told them."""
    return {
        "roots": [_struct(root) for root in found.roots],
        "checkpoints": [_struct(one) for one in found.checkpoints],
    }


def upload_payload(upload: Upload) -> dict[str, Any]:
    """One file, whole or on its way."""
    return {
        "id": str(upload.pk),
        "name": upload.name,
        "size_bytes": upload.size_bytes,
        "offset": upload_offset(upload),
        "sha256": upload.sha256,
        "num_tensors": upload.num_tensors,
        "uploaded_by": upload.uploaded_by_name,
        "created_at": when(upload.created_at),
        "used_at": when(upload.used_at),
        "piece_bytes": settings.PIECE_BYTES,
        "links": {"self": f"{API}/uploads/{upload.pk}"},
    }


def _span(span: Span | None) -> dict[str, Any] | None:
    return None if span is None else asdict(span)


def plan_payload(plan: Plan) -> dict[str, Any]:
    """A plan, with null for what is not known."""
    can_be_undone, undo = plan.undo
    risk, history = plan.risk, plan.history
    is_update = plan.kind in WEIGHT_UPDATES
    return {
        "dry_run": True,
        "engine": plan.view.name,
        "kind": str(plan.kind),
        "params": plan.params.stored(),
        "mode": plan.mode or None,
        "as_of": when(plan.view.observed_at),
        "would_be_accepted": not plan.refusals,
        "refusals": [asdict(one) for one in plan.refusals],
        "num_ranks": len(plan.view.ranks),
        "served": asdict(plan.served) if plan.served else None,
        "storage": attached_payload(plan.attached),
        "cache_lost": [{"tier": "l1", "tokens": plan.cached_tokens}] if plan.drops_cache else [],
        "recompute_rank_s": _span(plan.recompute_s) if plan.drops_cache else None,
        "running": plan.running,
        "waiting": plan.waiting,
        "at_risk": {
            "lost": risk.lost,
            "restarted": risk.restarted,
            "finish_first": risk.finish_first,
            "holds_new": risk.holds,
        },
        "held": _span(history.held),
        "bytes_a_rank": plan.bytes_a_rank,
        "staging_s": _span(history.staged_s) if is_update else None,
        "pause_s": _span(history.pause_s),
        "checkpoint": _struct(plan.checkpoint),
        "can_be_undone": can_be_undone,
        "undo": undo,
    }


def backends_payload() -> list[dict[str, Any]]:
    """Each kind of storage backend and its settings."""
    return [
        {
            "backend": str(backend),
            "about": about_of(backend),
            "is_experimental": backend in EXPERIMENTAL_BACKENDS,
            "settings": [msgspec.to_builtins(one) for one in fields_of(backend)],
        }
        for backend in StorageBackend
    ]

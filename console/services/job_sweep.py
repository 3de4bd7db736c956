"""What the reconciler does to jobs that no worker follows. Any number of reconcilers is safe.

The engine's words come in as arguments: asking it is the task's part.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from django.db import transaction
from django.db.models import F, Q

from console import dispatch
from console.actors import Actor
from console.choices import HOLDING_STATES, SHARED_KINDS, JobState
from console.clock import db_now
from console.models import Job, Outbox
from console.prepared import Prepared
from console.services.transitions import job_announce, job_let_next, job_move
from engine.protocol import EngineState, QueryAnswer

RING_AGAIN_S = 2.0
RING_AGAIN_MAX_S = 15.0


# What is looked for at each pass, and mostly not there.
_OWED = Prepared(
    lambda now: Outbox.objects.select_related("job").filter(
        Q(job__not_before=None) | Q(job__not_before__lte=now)
    ),
    datetime,
)
_OVERDUE = Prepared(
    lambda now: Job.objects.filter(
        state__in=[JobState.ACCEPTED, JobState.CLAIMED], dispatch_by__lte=now
    ),
    datetime,
)
_LAPSED = Prepared(
    lambda now: Job.objects.filter(
        state__in=[JobState.CLAIMED, JobState.DISPATCHED], lease_until__lt=now
    ),
    datetime,
)
_UNKNOWN = Prepared(
    lambda: Job.objects.select_related("engine").filter(state=JobState.RECONCILING).order_by("id")
)
_TO_CANCEL = Prepared(
    lambda: Job.objects.select_related("engine").filter(
        state__in=[JobState.DISPATCHED, JobState.RECONCILING], cancel_requested=True
    )
)
_BLOCKED = Prepared(
    lambda: (
        Job.objects.select_related("engine")
        .filter(state=JobState.ACCEPTED, blocked=True)
        .order_by("created_at", "id")
    )
)


def doorbells_ring(*, now: datetime | None = None) -> int:
    """Ring again for jobs that wait for a worker; slower each time, so an absent worker finds few.

    Returns how many were rung.
    """
    now = now or db_now()
    rung = 0
    for owed in _OWED.all(now):
        pause_s = min(RING_AGAIN_MAX_S, RING_AGAIN_S * 2 ** min(owed.rings - 1, 6))
        since = max(owed.rung_at, owed.job.not_before or owed.rung_at)
        first_try = owed.job.not_before is not None and owed.rung_at < owed.job.not_before
        if not first_try and now - since < timedelta(seconds=pause_s):
            continue
        moved = Outbox.objects.filter(pk=owed.pk, rings=owed.rings).update(
            rung_at=now, rings=F("rings") + 1
        )
        if moved:
            dispatch.job_ring(owed.job_id)
            rung += 1
    return rung


def jobs_overdue(*, now: datetime | None = None) -> list[Job]:
    """Unsent jobs whose time to be sent is over."""
    now = now or db_now()
    return _OVERDUE.all(now)


def jobs_lapsed(*, now: datetime | None = None) -> list[Job]:
    """Claimed or dispatched jobs whose worker has gone silent."""
    now = now or db_now()
    return _LAPSED.all(now)


def jobs_unknown() -> list[Job]:
    """Jobs to ask their engine about."""
    return _UNKNOWN.all()


def jobs_to_cancel() -> list[Job]:
    """Dispatched jobs whose cancelling an engine has yet to hear of."""
    return _TO_CANCEL.all()


def jobs_blocked_by_strangers() -> list[Job]:
    """The oldest blocked job of each engine that no job of ours holds."""
    found: dict[int, Job] = {}
    for job in _BLOCKED.all():
        found.setdefault(job.engine_id, job)
    if not found:
        return []
    exclusive = Job.objects.filter(engine_id__in=list(found)).exclude(kind__in=SHARED_KINDS)
    held = set(
        exclusive.filter(state__in=HOLDING_STATES).values_list("engine_id", flat=True)
    ) | set(
        exclusive.filter(state=JobState.ACCEPTED, blocked=False).values_list("engine_id", flat=True)
    )
    return [job for engine_pk, job in found.items() if engine_pk not in held]


@transaction.atomic
def job_let_go(*, job: Job, now: datetime | None = None) -> Job | None:
    """Unblock the engine's oldest blocked job if nothing of ours is ahead of it."""
    now = now or db_now()
    return job_let_next(engine_pk=job.engine_id, now=now)


@transaction.atomic
def job_never_ran(
    *, job_id: UUID, attempt: int, answer: QueryAnswer, now: datetime | None = None
) -> Job | None:
    """End a job that the engine never saw and has promised never to run."""
    job = Job.objects.filter(pk=job_id).first()
    cancelled = job is not None and job.cancel_requested
    return job_move(
        job_id=job_id,
        frm={JobState.RECONCILING},
        to=JobState.CANCELLED if cancelled else JobState.FAILED,
        attempt=attempt,
        actor=None,
        process="reconciler",
        now=now or db_now(),
        fields={
            "reply": msgspec.to_builtins(answer),
            "error": {
                "code": "never_ran",
                "message": "the engine never received it, and has promised never to run it",
            },
            "note": "reconciled: the engine was asked what became of it",
        },
    )


@transaction.atomic
def job_interrupted(
    *,
    job_id: UUID,
    attempt: int,
    why: str,
    observed: EngineState | None,
    now: datetime | None = None,
) -> Job | None:
    """End a job whose engine lost its memory of it; what was observed instead is kept."""
    return job_move(
        job_id=job_id,
        frm={JobState.RECONCILING},
        to=JobState.INTERRUPTED,
        attempt=attempt,
        actor=Actor.system("reconciler"),
        process="reconciler",
        now=now or db_now(),
        fields={
            "error": {"code": "journal_lost", "message": why},
            "reply": None if observed is None else {"observed": msgspec.to_builtins(observed)},
            "note": why[:500],
        },
        facts={"note": why},
    )


def job_note(*, job_id: UUID, note: str, now: datetime | None = None) -> bool:
    """Tell people why a job is still unknown; no state change. False when it is said already."""
    changed = bool(
        Job.objects.filter(pk=job_id, state=JobState.RECONCILING)
        .exclude(note=note[:500])
        .update(note=note[:500], version=F("version") + 1, updated_at=now or db_now())
    )
    if changed:
        with transaction.atomic():
            job_announce(Job(pk=job_id))
    return changed

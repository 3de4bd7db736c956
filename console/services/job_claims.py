"""Who has a job: claims, their leases, giving back and handing over.

A lease is a duration on the database's clock; a worker that lost it gets None and stops.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from django.db import IntegrityError, transaction

from console import dispatch
from console.actors import Actor
from console.choices import JobPhase, JobState
from console.clock import db_now
from console.exceptions import Forbidden
from console.models import Job
from console.params.registry import params_from
from console.selectors.access import rights_behind, why_shut_out
from console.services.jobs import job_require
from console.services.transitions import job_move

LEASE_S = 10.0


def job_claim(*, job_id: UUID, owner: str, now: datetime | None = None) -> Job | None:
    """Take a job that waits for a worker. None: taken, ended, blocked, not due, or too late; or
    whoever asked for it may not do so any more, and then it has failed."""
    now = now or db_now()
    try:
        with transaction.atomic():
            job = job_take(job_id=job_id, owner=owner, now=now)
    except IntegrityError:
        return None  # another job holds the engine: the index is the last word
    # On its own, for it ends the job: its lock of the engine comes before that of the audit log.
    return job if job is None or _still_allowed(job, now) else None


def job_take(*, job_id: UUID, owner: str, now: datetime) -> Job | None:
    """The claim itself, in the caller's transaction, whoever asked. Raises IntegrityError where
    another job holds the engine."""
    return job_move(
        job_id=job_id,
        frm={JobState.ACCEPTED},
        to=JobState.CLAIMED,
        where=partial(_is_due, now=now),
        actor=None,
        process="worker",
        now=now,
        fields={
            "lease_until": now + timedelta(seconds=LEASE_S),
            "lease_owner": owner,
            "not_before": None,
        },
        facts={"owner": owner},
    )


def _is_due(job: Job, *, now: datetime) -> bool:
    """Nothing is in its way, and it can still be sent in time."""
    if job.blocked or job.dispatch_by is None or job.dispatch_by <= now:
        return False
    return job.not_before is None or job.not_before <= now


def lapsed_by(lapsed_at: datetime | None) -> Callable[[Job], bool] | None:
    """Whether a job's lease had ended before then; with None, whether or not."""
    if lapsed_at is None:
        return None
    return lambda job: job.lease_until is not None and job.lease_until < lapsed_at


def _still_allowed(job: Job, now: datetime) -> bool:
    """Rights may have gone since the job was asked for; nothing was sent yet."""
    try:
        asker_require(job)
    except Forbidden as error:
        why = why_shut_out(job) or error.message
        job_unsendable(
            job_id=job.pk,
            attempt=job.attempt,
            code=error.code,
            message=f"{job.requested_by_name} may not do this any more: {why}",
            now=now,
        )
        return False
    return True


def asker_require(job: Job) -> None:
    """Raise Forbidden unless whoever asked for the job may do so now."""
    job_require(
        engine=job.engine,
        params=params_from(job.kind, job.params),
        rights=rights_behind(job),
    )


def job_lease_renew(*, job_id: UUID, attempt: int, owner: str, now: datetime | None = None) -> bool:
    """Keep a claim alive. False: it is lost, and nothing more may be sent."""
    now = now or db_now()
    return bool(
        Job.objects.filter(
            pk=job_id,
            attempt=attempt,
            lease_owner=owner,
            state__in=[JobState.CLAIMED, JobState.DISPATCHED],
        ).update(lease_until=now + timedelta(seconds=LEASE_S))
    )


@transaction.atomic
def job_handover(*, job_id: UUID, attempt: int, owner: str, now: datetime | None = None) -> bool:
    """Let another task follow a dispatched job: the lease stays, its owner becomes nobody."""
    now = now or db_now()
    done = Job.objects.filter(
        pk=job_id, attempt=attempt, lease_owner=owner, state=JobState.DISPATCHED
    ).update(lease_owner="", lease_until=now + timedelta(seconds=LEASE_S))
    if done:
        transaction.on_commit(partial(dispatch.job_ring, job_id), robust=True)
    return bool(done)


def job_adopt(*, job_id: UUID, owner: str, now: datetime | None = None) -> Job | None:
    """Take over following a dispatched job that was handed over; None when it was not."""
    now = now or db_now()
    done = Job.objects.filter(
        pk=job_id, lease_owner="", lease_until__gt=now, state=JobState.DISPATCHED
    ).update(lease_owner=owner, lease_until=now + timedelta(seconds=LEASE_S))
    return Job.objects.select_related("engine").get(pk=job_id) if done else None


@transaction.atomic
def job_release(
    *,
    job_id: UUID,
    attempt: int,
    why: str,
    process: str,
    pause_s: float = 1.0,
    blocked_by: str = "",
    lapsed_at: datetime | None = None,
    now: datetime | None = None,
) -> Job | None:
    """Give a claim back unsent; with `blocked_by` it waits for that operation to end.

    `lapsed_at` limits it to a lease that ended before then (the reconciler's case).
    """
    now = now or db_now()
    fields: dict[str, object] = {
        "lease_until": None,
        "lease_owner": "",
        "note": why[:500],
        "not_before": now + timedelta(seconds=pause_s),
        "phase": JobPhase.BLOCKED if blocked_by else JobPhase.QUEUED,
    }
    if blocked_by:
        fields |= {
            "blocked": True,
            "blocked_by": blocked_by,
            "deadline_at": None,
            "dispatch_by": None,
        }
    return job_move(
        job_id=job_id,
        frm={JobState.CLAIMED},
        to=JobState.ACCEPTED,
        attempt=attempt,
        where=lapsed_by(lapsed_at),
        actor=Actor.system(process),
        process=process,
        now=now,
        fields=fields,
        facts={"note": why},
    )


@transaction.atomic
def job_unsendable(
    *,
    job_id: UUID,
    attempt: int,
    code: str,
    message: str,
    now: datetime | None = None,
) -> Job | None:
    """End a claimed job that cannot be sent: what was to go along is missing, or was refused."""
    return job_move(
        job_id=job_id,
        frm={JobState.CLAIMED},
        to=JobState.FAILED,
        attempt=attempt,
        actor=None,
        process="worker",
        now=now or db_now(),
        fields={
            "error": {"code": code, "message": f"{message}; nothing was submitted"},
        },
    )

"""What becomes of a claimed job: expired, dispatched, followed, finished.

Each is conditional on (state, attempt): a worker that lost its claim gets None and stops.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from django.db import IntegrityError, transaction
from django.db.models import F

from console.actors import Actor
from console.choices import STAGED_KINDS, UNSENT_STATES, JobPhase, JobState, Mode
from console.clock import db_now
from console.exceptions import Forbidden
from console.models import Engine, Job
from console.prepared import Prepared
from console.services.job_claims import LEASE_S, asker_require, job_take, lapsed_by
from console.services.transitions import (
    job_announce,
    job_locked,
    job_move,
    job_write,
    ranks_write,
)
from engine.protocol import (
    ErrorCode,
    Failure,
    OperationResult,
    OperationView,
    RankResult,
    RankState,
    Welcome,
)

# Of a claimed job: which engine it is for, and which process that was when it was last greeted.
_ENGINE = Prepared(
    lambda pk, attempt, owner: Job.objects.filter(
        pk=pk, attempt=attempt, lease_owner=owner
    ).values_list("engine_id", "engine__identity"),
    *(UUID, int, str),
)

# Unsent when it should have been sent.
_LATE = Prepared(
    lambda pk, now: Job.objects.filter(
        pk=pk, state__in=sorted(UNSENT_STATES), dispatch_by__lte=now
    ).values_list("pk"),
    *(UUID, datetime),
)

DEADLINE_JITTER_S = 0.25  # a deadline that moved by less was not moved by anyone

# The engine was asked once and said that it changed nothing. After any other failure an earlier
# word of ours may still have had an effect, so the job is reconciled.
CLEAN_REFUSALS = frozenset(
    {
        ErrorCode.INVALID_ARGUMENT,
        ErrorCode.OPERATION_PENDING,
        ErrorCode.TOO_LATE,
        ErrorCode.TOO_OLD,
        ErrorCode.SEALED,
        ErrorCode.RANK_NOT_READY,
        ErrorCode.NOT_READY,
        ErrorCode.JOURNAL_UNAVAILABLE,
        ErrorCode.OVERLOADED,
    }
)


def job_expire(
    *,
    job_id: UUID,
    process: str,
    attempt: int | None = None,
    code: str = "deadline_passed",
    message: str = "",
    now: datetime | None = None,
) -> Job | None:
    """End a job that was not sent in time: provably without effect.

    Asked of each job that was rung for twice: nothing is locked before there is something to end.
    """
    now = now or db_now()
    if _LATE.first(job_id, now) is None:
        return None
    with transaction.atomic():
        return job_move(
            job_id=job_id,
            frm=UNSENT_STATES,
            to=JobState.EXPIRED,
            attempt=attempt,
            where=lambda job: job.dispatch_by is not None and job.dispatch_by <= now,
            actor=None,
            process=process,
            now=now,
            fields={
                "error": {
                    "code": code,
                    "message": message or "no worker sent it before its deadline; nothing was sent",
                }
            },
        )


@transaction.atomic
def job_dispatched(
    *, job_id: UUID, attempt: int, owner: str, welcome: Welcome, now: datetime | None = None
) -> Job | None:
    """Record that the job is about to be sent; commit this, then send.

    None: the claim is lost, or the deadline has passed. Also notes the engine's identity.
    """
    now = now or db_now()

    # First: whoever asks for a job holds the engine's row and then waits for the audit log, which
    # this transaction holds from its entry on.
    known = _ENGINE.first(job_id, attempt, owner)
    if known is not None and known[1] != welcome.engine_id:
        Engine.objects.filter(pk=known[0]).update(identity=welcome.engine_id)
    return _dispatch(job_id=job_id, attempt=attempt, owner=owner, welcome=welcome, now=now)


def job_claim_dispatched(
    *, job_id: UUID, owner: str, welcome: Welcome, now: datetime | None = None
) -> Job | None:
    """Claim a job and record that it is about to be sent, for its engine that has just answered.

    None: nothing was done, and `job_claim` is what goes on: it is not to be had, or whoever asked
    for it may not any more, or that engine is a new process.
    """
    now = now or db_now()
    with suppress(IntegrityError, Forbidden), transaction.atomic():
        job = job_take(job_id=job_id, owner=owner, now=now)
        if job is None:
            return None
        asker_require(job)
        sent = None
        if job.engine.identity == welcome.engine_id:
            sent = _dispatch(
                job_id=job_id, attempt=job.attempt, owner=owner, welcome=welcome, now=now
            )
        if sent is None:
            transaction.set_rollback(True)
        return sent
    return None


def _dispatch(
    *, job_id: UUID, attempt: int, owner: str, welcome: Welcome, now: datetime
) -> Job | None:
    def may_go(job: Job) -> bool:
        is_ours = job.lease_owner == owner and job.lease_until is not None and job.lease_until > now
        return is_ours and job.dispatch_by is not None and job.dispatch_by > now

    return job_move(
        job_id=job_id,
        frm={JobState.CLAIMED},
        to=JobState.DISPATCHED,
        attempt=attempt,
        where=may_go,
        actor=None,
        process="worker",
        now=now,
        ranks=[
            RankResult(dp_rank=rank, state=RankState.NOT_STARTED) for rank in range(welcome.dp_size)
        ],
        fields={
            "phase": JobPhase.PREPARING,
            "engine_epoch": welcome.epoch,
            "engine_identity": welcome.engine_id,
            "dispatched_at": now,
            "lease_until": now + timedelta(seconds=LEASE_S),
            "note": "",
        },
        facts={"engine_identity": welcome.engine_id, "owner": owner},
    )


@transaction.atomic
def job_progress(
    *, job_id: UUID, attempt: int, view: OperationView, now: datetime | None = None
) -> bool:
    """Note where the operation stands. No state change, so no audit entry; False if nothing moved.

    A job being reconciled keeps the phase *unknown*: only its end makes it known again.
    """
    now = now or db_now()
    states = [JobState.DISPATCHED, JobState.RECONCILING]
    job = job_locked(job_id)
    if job is None or job.attempt != attempt or job.state not in states:
        return False
    fields: dict[str, object] = {}
    phase = JobPhase(str(view.phase))
    if job.cancel_requested and phase is JobPhase.WAITING_FOR_IDLE:
        phase = JobPhase.CANCELLING
    if job.state == JobState.DISPATCHED and job.phase != phase:
        fields["phase"] = phase
    if job.mode != str(view.mode):
        fields["mode"] = Mode(str(view.mode))
    is_staging = job.kind in STAGED_KINDS and phase is JobPhase.PREPARING
    if str(view.mode) != str(Mode.IF_IDLE) and not is_staging:
        deadline_at = now + timedelta(seconds=view.remaining_s)
        moved_s = abs((deadline_at - job.deadline_at).total_seconds()) if job.deadline_at else 1e9
        # At 0 the engine's "remaining" says only that the deadline has passed.
        if moved_s > DEADLINE_JITTER_S and view.remaining_s > 0:
            fields["deadline_at"] = deadline_at
    _, changed = ranks_write(job, view.ranks) if view.ranks else ([], False)
    if not (fields or changed):
        return False
    job_write(job, {"updated_at": now, **fields})
    job_announce(job)
    return True


@transaction.atomic
def job_finish(
    *,
    job_id: UUID,
    attempt: int,
    frm: JobState,
    result: OperationResult,
    process: str,
    now: datetime | None = None,
) -> Job | None:
    """End a job by what the engine recorded, rank by rank."""
    state = JobState(str(result.outcome))
    note = "" if process == "worker" else "reconciled: the engine was asked what became of it"
    return job_move(
        job_id=job_id,
        frm={frm},
        to=state,
        attempt=attempt,
        actor=None,
        process=process,
        now=now or db_now(),
        ranks=result.ranks,
        fields={
            "reply": msgspec.to_builtins(result),
            "mode": Mode(str(result.mode)),
            "note": note,
            "error": None
            if state is JobState.SUCCEEDED
            else {"code": str(state), "message": result.message},
        },
        facts={"said": result.message, "note": note},
    )


@transaction.atomic
def job_refused(
    *, job_id: UUID, attempt: int, failure: Failure, now: datetime | None = None
) -> Job | None:
    """End a job that the engine refused without changing anything (CLEAN_REFUSALS)."""
    assert failure.code in CLEAN_REFUSALS, failure
    late = failure.code is ErrorCode.TOO_LATE
    error: dict[str, object] = {"code": str(failure.code), "message": failure.message}
    if failure.code is ErrorCode.OPERATION_PENDING:
        error |= {"holder": failure.holder, "remaining_s": failure.remaining_s}
    return job_move(
        job_id=job_id,
        frm={JobState.DISPATCHED},
        to=JobState.EXPIRED if late else JobState.FAILED,
        attempt=attempt,
        actor=None,
        process="worker",
        now=now or db_now(),
        fields={"reply": msgspec.to_builtins(failure), "error": error},
    )


@transaction.atomic
def job_feeding(
    *,
    job_id: UUID,
    attempt: int,
    owner: str,
    sent_bytes: int,
    total_bytes: int,
    room_s: float,
    now: datetime | None = None,
) -> bool:
    """Note how much of a job's files its engine has. False: the claim is lost.

    The first note moves the time by which the job must be sent, once, by `room_s`: the engine is
    there, and so many bytes take a while.
    """
    now = now or db_now()
    rows = Job.objects.filter(pk=job_id, attempt=attempt, lease_owner=owner, state=JobState.CLAIMED)
    fields: dict[str, object] = {"sent_bytes": sent_bytes, "total_bytes": total_bytes}
    if rows.filter(sent_bytes=None).exists():
        fields["dispatch_by"] = now + timedelta(seconds=room_s)
    changed = rows.update(
        **fields, phase=JobPhase.PREPARING, version=F("version") + 1, updated_at=now
    )
    if changed:
        job_announce(Job(pk=job_id))
    return bool(changed)


@transaction.atomic
def job_reconcile(
    *,
    job_id: UUID,
    attempt: int,
    why: str,
    process: str,
    lapsed_at: datetime | None = None,
    now: datetime | None = None,
) -> Job | None:
    """Admit that it is not known what became of a job that was sent; never sends it again."""
    return job_move(
        job_id=job_id,
        frm={JobState.DISPATCHED},
        to=JobState.RECONCILING,
        attempt=attempt,
        where=lapsed_by(lapsed_at),
        actor=Actor.system(process),
        process=process,
        now=now or db_now(),
        fields={
            "phase": JobPhase.UNKNOWN,
            "note": why[:500],
            "lease_until": None,
            "lease_owner": "",
        },
        facts={"note": why},
    )

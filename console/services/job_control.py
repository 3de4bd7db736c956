"""What people do to a job: cancel, extend, force.

Unsent, it is the console's to change. Sent, the wish is recorded and committed first, then told to
the engine in a conversation of its own (bounded by ANSWER_S); the job ends by what the engine says.
A cancel that an engine could not hear is repeated by the reconciler until the job ends.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import F

from console.access import KIND_ACTS, Asked, Rights
from console.actors import Actor
from console.choices import (
    HARSHER,
    TERMINAL_STATES,
    UNSENT_STATES,
    AuditStage,
    JobKind,
    JobPhase,
    JobState,
    Mode,
)
from console.clock import db_now
from console.exceptions import (
    Conflict,
    EngineRefused,
    EngineUnreachable,
    Invalid,
    JobFinished,
    PreconditionFailed,
)
from console.gateways import EngineSilent, gateway_for
from console.models import Job
from console.selectors.access import labels_of_engine
from console.selectors.jobs import job_get, job_waits
from console.services.audit import Fact, audit_append
from console.services.job_run import job_progress
from console.services.reasons import reason_read
from console.services.transitions import deadlines, job_announce, job_move
from engine.protocol import (
    MAX_TIMEOUT_S,
    Accepted,
    Cancel,
    Command,
    ErrorCode,
    Extend,
    Failure,
    Force,
    ProtocolError,
    Reply,
)

ANSWER_S = 1.5
SENT_STATES = frozenset({JobState.DISPATCHED, JobState.RECONCILING})


def version_check(job: Job, if_version: int | None) -> None:
    """Raise PreconditionFailed when the job is not as the asker read it."""
    if if_version is not None and job.version != if_version:
        raise PreconditionFailed(
            f"job {job.pk} has version {job.version}, not {if_version}; read it again",
            facts={"version": job.version},
        )


def _open_job(job_id: UUID, actor: Actor, if_version: int | None) -> Job:
    job = job_get(job_id=job_id, rights=actor.rights)
    steer_require(job, actor.rights)
    version_check(job, if_version)
    if job.state in TERMINAL_STATES:
        raise JobFinished(f"job {job.pk} has ended: {job.state}", facts={"state": job.state})
    return job


def steer_require(job: Job, rights: Rights, asked: Asked | None = None) -> None:
    """Whoever may ask for a job may steer it; a service account its own only. Raises Forbidden."""
    rights.require(
        KIND_ACTS[JobKind(job.kind)],
        labels_of_engine(job.engine),
        asked=asked,
        whose=True,
        asked_by=job.requested_by_id,
    )


def _note(job: Job, action: str, actor: Actor, now: datetime, facts: dict[str, Fact]) -> None:
    audit_append(
        action=action,
        stage=AuditStage.NOTE,
        actor=actor,
        now=now,
        process="web",
        engine_name=job.engine.name,
        job_id=job.pk,
        facts={"object": f"{job.kind} on {job.engine.name}", "kind": job.kind, **facts},
    )


def _unsent_update(
    job: Job,
    action: str,
    actor: Actor,
    now: datetime,
    facts: dict[str, Fact],
    fields: dict[str, object],
) -> bool:
    """Change an unsent job in place; False when it has moved meanwhile."""
    with transaction.atomic():
        changed = Job.objects.filter(
            pk=job.pk, state__in=UNSENT_STATES, version=job.version
        ).update(version=F("version") + 1, updated_at=now, **fields)
        if changed:
            job_announce(job)
            _note(job, action, actor, now, facts)
    return bool(changed)


def engine_tell(job: Job, command: Command) -> Reply:
    """Say `command` to the job's engine. Raises EngineUnreachable."""
    try:
        with gateway_for(job.engine).converse(job.engine) as conversation:
            return conversation.call(command, timeout_s=ANSWER_S)
    except (EngineSilent, ProtocolError) as error:
        raise EngineUnreachable(f"engine {job.engine.name} did not answer: {error}") from error


def _refuse(job: Job, failure: Failure) -> EngineRefused:
    return EngineRefused(
        f"engine {job.engine.name} refused: {failure.message}",
        facts={"engine_code": str(failure.code)},
    )


def _tell(job: Job, command: Command, actor: Actor, action: str, facts: dict[str, Fact]) -> Job:
    """Record the wish, tell the engine, record its answer. Raises EngineRefused, …Unreachable."""
    with transaction.atomic():
        _note(job, f"{action}_requested", actor, db_now(), facts)
    reply = engine_tell(job, command)
    if isinstance(reply, Failure):
        with transaction.atomic():
            _note(
                job,
                f"{action}_refused",
                actor,
                db_now(),
                {"code": str(reply.code), "message": reply.message},
            )
        raise _refuse(job, reply)
    if not isinstance(reply, Accepted):
        raise EngineUnreachable(f"engine {job.engine.name} answered {type(reply).__name__}")
    job_progress(job_id=job.pk, attempt=job.attempt, view=reply.operation)
    return job_get(job_id=job.pk, rights=actor.rights)


def _retried(
    step: Callable[[Job], Job | None], job_id: UUID, actor: Actor, if_version: int | None
) -> Job:
    """Repeat `step` on the fresh row while the job moves under it."""
    for _ in range(5):
        done = step(_open_job(job_id, actor, if_version))
        if done is not None:
            return done
    raise Conflict(f"job {job_id} keeps changing; try again")


def job_cancel(
    *, job_id: UUID, actor: Actor, reason: str = "", if_version: int | None = None
) -> Job:
    """Cancel: at once if nothing was sent, else ask the engine.

    Raises Invalid (the reason), Forbidden, JobFinished, EngineRefused.

    With an engine that does not answer the job stays as it is, marked, and the wish is repeated.
    """

    reason = reason_read(reason)

    def step(job: Job) -> Job | None:
        if job.state in UNSENT_STATES:
            with transaction.atomic():
                moved = job_move(
                    job_id=job.pk,
                    frm=UNSENT_STATES,
                    to=JobState.CANCELLED,
                    actor=actor,
                    process="web",
                    now=db_now(),
                    facts={"cancel_reason": reason},
                )
            return None if moved is None else job_get(job_id=job.pk, rights=actor.rights)
        return _cancel_sent(job, actor, reason)

    return _retried(step, job_id, actor, if_version)


def _cancel_sent(job: Job, actor: Actor, reason: str) -> Job | None:
    now = db_now()
    with transaction.atomic():
        marked = Job.objects.filter(pk=job.pk, state__in=SENT_STATES).update(
            cancel_requested=True, version=F("version") + 1, updated_at=now
        )
        if not marked:
            return None
        Job.objects.filter(pk=job.pk, state=JobState.DISPATCHED).update(phase=JobPhase.CANCELLING)
        job_announce(job)
        _note(job, "job.cancel_requested", actor, now, {"cancel_reason": reason})
    with contextlib.suppress(EngineUnreachable):  # marked: the reconciler repeats it
        cancel_forward(job=job)
    return job_get(job_id=job.pk, rights=actor.rights)


def cancel_forward(*, job: Job) -> None:
    """Tell the engine of a marked cancel.

    Raises EngineRefused (the mark is gone), EngineUnreachable.
    """
    reply = engine_tell(job, Cancel(op_id=str(job.pk)))
    if not isinstance(reply, Failure) or reply.code is ErrorCode.UNKNOWN_OPERATION:
        return  # taken, or not there yet or any more: the job's end will tell
    with transaction.atomic():
        Job.objects.filter(pk=job.pk, cancel_requested=True).update(
            cancel_requested=False, version=F("version") + 1, updated_at=db_now()
        )
        Job.objects.filter(pk=job.pk, state=JobState.DISPATCHED, phase=JobPhase.CANCELLING).update(
            phase=JobPhase.COMMITTING
        )
        job_announce(job)
        _note(
            job,
            "job.cancel_refused",
            Actor.system("engine"),
            db_now(),
            {"code": str(reply.code), "message": reply.message},
        )
    raise _refuse(job, reply)


def job_extend(*, job_id: UUID, by_s: float, actor: Actor, if_version: int | None = None) -> Job:
    """Move the deadline by `by_s` seconds, negative for sooner.

    Raises Invalid, Forbidden, JobFinished, Conflict (no deadline), EngineRefused,
    EngineUnreachable.
    """
    if not math.isfinite(by_s) or abs(by_s) > MAX_TIMEOUT_S:
        raise Invalid(f"by_s must be a finite number within ±{MAX_TIMEOUT_S:.0f}")

    def step(job: Job) -> Job | None:
        if not job_waits(job):
            raise Conflict(f"{job.kind} takes effect at once: it has no deadline to move")
        if job.mode == Mode.IF_IDLE:
            raise Conflict("a job with mode if_idle has no deadline to move")
        steer_require(job, actor.rights, Asked(timeout_s=_whole_wait_s(job, by_s)))
        if job.state not in UNSENT_STATES:
            return _tell(
                job, Extend(op_id=str(job.pk), by_s=by_s), actor, "job.extend", {"by_s": by_s}
            )
        timeout_s = min(MAX_TIMEOUT_S, max(0.0, job.timeout_s + by_s))
        fields: dict[str, object] = {"timeout_s": timeout_s}
        if job.deadline_at is not None:
            deadline_at = job.deadline_at + timedelta(seconds=by_s)
            fields |= {"deadline_at": deadline_at, "dispatch_by": deadline_at}
        done = _unsent_update(job, "job.extended", actor, db_now(), {"by_s": by_s}, fields)
        return job_get(job_id=job.pk, rights=actor.rights) if done else None

    return _retried(step, job_id, actor, if_version)


def _whole_wait_s(job: Job, by_s: float) -> float:
    """From its beginning to the moved deadline, as limits of grants measure it."""
    start_at = job.dispatched_at if job.state in SENT_STATES else None
    if job.deadline_at is None or start_at is None:
        return job.timeout_s + by_s
    return max(job.timeout_s, (job.deadline_at - start_at).total_seconds()) + by_s


def job_force(*, job_id: UUID, actor: Actor, if_version: int | None = None) -> Job:
    """Take the next harsher mode.

    Raises Forbidden, JobFinished, Conflict, EngineRefused, EngineUnreachable.
    """

    def step(job: Job) -> Job | None:
        harsher = HARSHER.get(Mode(job.mode))
        if not job_waits(job):
            raise Conflict(f"{job.kind} takes effect at once: it has no mode")
        if harsher is None:
            raise Conflict(f"mode {job.mode} has no harsher one")
        steer_require(job, actor.rights, Asked(mode=str(harsher), is_forced=True))
        facts: dict[str, Fact] = {"mode": job.mode, "to": str(harsher)}
        if job.state not in UNSENT_STATES:
            return _tell(job, Force(op_id=str(job.pk)), actor, "job.force", facts)
        now = db_now()
        fields: dict[str, object] = {"mode": harsher}
        if job.mode == Mode.IF_IDLE:
            timeout_s = 60.0
            fields["timeout_s"] = timeout_s
            if not job.blocked:
                deadline_at, dispatch_by = deadlines(
                    kind=job.kind, mode=harsher, timeout_s=timeout_s, since=now
                )
                fields |= {"deadline_at": deadline_at, "dispatch_by": dispatch_by}
        done = _unsent_update(job, "job.forced", actor, now, facts, fields)
        return job_get(job_id=job.pk, rights=actor.rights) if done else None

    return _retried(step, job_id, actor, if_version)

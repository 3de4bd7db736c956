"""Jobs that follow another one: the same again, or its inverse. Both are new jobs, linked to it."""

from __future__ import annotations

from uuid import UUID

from console.access import KIND_ACTS
from console.actors import Actor
from console.choices import (
    STORAGE_KINDS,
    TERMINAL_STATES,
    Follow,
    JobKind,
    JobState,
    OnConflict,
)
from console.exceptions import Conflict
from console.models import Job
from console.params import JobParams
from console.params.control import ContinueParams, ResumeParams
from console.params.registry import params_from
from console.params.storage import AttachParams, DetachParams, PoliciesParams
from console.selectors.access import labels_of_engine
from console.selectors.jobs import job_get
from console.selectors.storage import undo_of
from console.services.job_control import version_check
from console.services.jobs import JobAsked, Origin, job_create

RETRY_REASON, UNDO_REASON = "Retry of job {}", "Undo of job {}"


def _followed(job_id: UUID, actor: Actor, if_version: int | None) -> Job:
    """The job, for whoever may ask for one of its kind on its engine, as they have read it."""
    job = job_get(job_id=job_id, rights=actor.rights)
    actor.rights.require(KIND_ACTS[JobKind(job.kind)], labels_of_engine(job.engine))
    version_check(job, if_version)
    return job


def why_no_retry(job: Job) -> str:
    """A sentence; empty for one that has ended, and not as it should."""
    if job.state not in TERMINAL_STATES:
        return f"job {job.pk} has not ended: it is {job.phase}"
    if job.state == JobState.SUCCEEDED:
        return f"job {job.pk} succeeded; ask for a new one"
    return ""


def job_retry(
    *,
    job_id: UUID,
    actor: Actor,
    reason: str = "",
    on_conflict: OnConflict = OnConflict.REFUSE,
    idempotency_key: str | None = None,
    if_version: int | None = None,
) -> JobAsked:
    """Ask for the same again on every rank, with the parameters as they were recorded.

    Raises JobNotFound, Conflict for a job that goes on or succeeded, and what job_create raises.
    """
    job = _followed(job_id, actor, if_version)
    if why := why_no_retry(job):
        raise Conflict(why, facts={"state": job.state})
    return job_create(
        engine_name=job.engine.name,
        params=params_from(job.kind, job.params),
        reason=reason or RETRY_REASON.format(job.pk),
        on_conflict=on_conflict,
        actor=actor,
        idempotency_key=idempotency_key,
        origin=Origin(job, Follow.RETRY),
    )


def job_undo(
    *,
    job_id: UUID,
    actor: Actor,
    reason: str = "",
    on_conflict: OnConflict = OnConflict.REFUSE,
    idempotency_key: str | None = None,
    if_version: int | None = None,
) -> JobAsked:
    """Ask for the inverse of a job that succeeded.

    Raises JobNotFound, Conflict where there is none or where what the job left was changed since,
    and what job_create raises.
    """
    job = _followed(job_id, actor, if_version)
    params = inverse_of(job)
    if params is None:
        raise Conflict(f"job {job.pk} cannot be undone: {_why_not(job)}")
    return job_create(
        engine_name=job.engine.name,
        params=params,
        reason=reason or UNDO_REASON.format(job.pk),
        on_conflict=on_conflict,
        actor=actor,
        idempotency_key=idempotency_key,
        origin=Origin(job, Follow.UNDO),
        takes_back=job,
    )


# What makes a job of this kind the inverse; how long it waits, and how, is its own.
_ESSENTIAL = {
    JobKind.ATTACH_STORAGE_BACKEND: ("backend", "config_id"),
    JobKind.DETACH_STORAGE_BACKEND: (),
    JobKind.SET_CACHE_POLICIES: ("write_policy", "prefetch_policy"),
}


def origin_of(job: Job, params: JobParams) -> Origin | None:
    """The link of a new job to one that it takes back; None where it does something else."""
    inverse = inverse_of(job)
    if inverse is None or inverse.kind != params.kind or params.kind not in _ESSENTIAL:
        return None
    asked, wanted = params.stored(), inverse.stored()
    same = all(asked.get(name) == wanted.get(name) for name in _ESSENTIAL[params.kind])
    return Origin(job, Follow.UNDO) if same else None


def inverse_of(job: Job) -> JobParams | None:
    """What would put back what this job changed; None where nothing would."""
    if job.state != JobState.SUCCEEDED:
        return None
    match job.kind:
        case JobKind.PAUSE_GENERATION:
            return ContinueParams()
        case JobKind.RELEASE_MEMORY:
            return ResumeParams(tags=list(job.params["tags"]))
        case _ if job.kind in STORAGE_KINDS:
            return _storage_inverse(job)
    return None


def _storage_inverse(job: Job) -> JobParams | None:
    undo = undo_of(job)
    if undo is None:
        return None
    waits = {name: job.params[name] for name in ("timeout_s", "mode") if name in job.params}
    policies = dict(undo.policies)
    if undo.kind == JobKind.DETACH_STORAGE_BACKEND:
        return DetachParams.model_validate(waits)
    if undo.kind == JobKind.SET_CACHE_POLICIES:
        return PoliciesParams.model_validate(policies)
    assert undo.attached is not None
    named = {"backend": str(undo.attached.backend), "config_id": undo.attached.config_id}
    return AttachParams.model_validate({**named, "replace": True, **policies, **waits})


def _why_not(job: Job) -> str:
    if job.state != JobState.SUCCEEDED:
        return f"it is {job.state}, and only what succeeded has an inverse"
    if job.kind == JobKind.CLEAR_STORAGE_BACKEND:
        return "what was deleted is gone"
    return "its kind has no inverse that is one job"

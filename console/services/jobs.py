"""Ask for a job: check, refuse or accept, all in one transaction with the audit's intent.

Accepting needs the database only: no Redis, and no engine but for a job with secrets, which only
its engine may keep. What happens to a job afterwards is in
`job_run` (worker and reconciler) and `job_control` (people).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import rfc8785
from django.db import IntegrityError, transaction

from console.access import EVERYTHING, KIND_ACTS, Asked, Rights
from console.actors import Actor
from console.choices import (
    SHARED_KINDS,
    WAITING_KINDS,
    AuditStage,
    Follow,
    JobPhase,
    JobState,
    OnConflict,
)
from console.clock import db_now
from console.exceptions import (
    EngineBusy,
    EngineDisabled,
    IdempotencyMismatch,
    Invalid,
)
from console.ids import uuid7
from console.models import Engine, Job
from console.params import JobParams
from console.prepared import Prepared, prefetched
from console.rows import rows_insert
from console.selectors.access import labels_of_engine
from console.selectors.engines import engine_named, engine_view
from console.selectors.jobs import job_get, job_holder, remaining_s
from console.selectors.undo import later_check, left_check
from console.services.audit import Fact, audit_append, canonical
from console.services.foreign import foreign_holder
from console.services.reasons import reason_read
from console.services.secrets import secrets_keep
from console.services.transitions import deadlines, job_announce, job_doorbell
from console.services.uploads import uploads_use

MAX_KEY_CHARS = 200

_KEYED = Prepared(
    lambda actor, key: Job.objects.filter(actor_key=actor, idempotency_key=key).values_list("pk"),
    *(str, str),
)
_ENGINE = Prepared(
    lambda pk: Engine.objects.select_for_update(no_key=True).filter(pk=pk).values_list("pk"), int
)


@dataclass(frozen=True)
class JobAsked:
    """A job, and whether this call made it (or an earlier one with the same key)."""

    job: Job
    is_new: bool


@dataclass(frozen=True)
class Origin:
    """The job that a new one repeats or takes back."""

    job: Job
    follow: Follow


def _body_hash(
    engine_name: str,
    params: JobParams,
    reason: str,
    on_conflict: OnConflict,
    origin: Origin | None,
) -> str:
    asked: dict[str, Fact] = {
        "engine": engine_name,
        "kind": str(params.kind),
        "params": params.compared(),
        "reason": reason,
        "on_conflict": str(on_conflict),
    }
    if origin is not None:
        asked |= {"origin": origin.job.pk, "follow": str(origin.follow)}
    body = canonical(asked)
    return hashlib.sha256(rfc8785.dumps(body)).hexdigest()  # type: ignore[arg-type]


def _replayed(actor: Actor, key: str | None, body_hash: str) -> JobAsked | None:
    if key is None:
        return None
    found = _KEYED.first(actor.key, key)
    if found is None:
        return None
    job = job_get(job_id=found[0], rights=EVERYTHING)
    if job.body_hash != body_hash:
        raise IdempotencyMismatch(
            "this Idempotency-Key was used for another request", facts={"job": str(job.pk)}
        )
    return JobAsked(job=job, is_new=False)


def _refuse(engine_name: str, holder: Job, now: datetime) -> EngineBusy:
    left_s = remaining_s(holder, now)
    return EngineBusy(
        f"job {holder.pk} holds engine {engine_name}"
        + (f" for at most {left_s:.1f} s more" if left_s is not None else ""),
        facts={"holder": str(holder.pk), "remaining_s": left_s},
    )


def _stranger_check(engine: Engine) -> None:
    """Raise EngineBusy while an operation of nobody here holds the engine.

    It asks the engine, so before the transaction; what comes in between, the engine refuses.
    """
    stranger = foreign_holder(engine=engine)
    if stranger is not None:
        raise EngineBusy(
            f"operation {stranger.op_id}, not of this console, holds engine {engine.name}",
            facts={"holder": stranger.op_id, "remaining_s": round(stranger.remaining_s, 1)},
        )


def job_require(*, engine: Engine, params: JobParams, rights: Rights) -> None:
    """Raise Forbidden unless `rights` allow such a job on this engine, as it is asked for."""
    waits = params.kind in WAITING_KINDS
    rights.require(
        KIND_ACTS[params.kind],
        labels_of_engine(engine),
        asked=Asked(
            mode=str(params.mode_in_force) if waits else "",
            timeout_s=params.timeout_in_force_s if waits else 0.0,
            is_forced=bool(getattr(params, "force", False)),
        ),
    )


def job_create(
    *,
    engine_name: str,
    params: JobParams,
    reason: str,
    on_conflict: OnConflict,
    actor: Actor,
    idempotency_key: str | None = None,
    origin: Origin | None = None,
    takes_back: Job | None = None,
    process: str = "web",
    now: datetime | None = None,
) -> JobAsked:
    """Accept a job, or return the one that the same key made.

    What kind of job is said by the class of `params`. With `takes_back` it is refused (Conflict)
    unless that job was of this engine and nothing changed since what it left. Raises
    EngineNotFound, Forbidden, EngineDisabled, EngineBusy (409, names the holder),
    IdempotencyMismatch, Invalid;
    EngineUnreachable, EngineRefused when there are secrets that it does not take beforehand.
    """
    engine = engine_named(engine_name, rights=actor.rights)
    job_require(engine=engine, params=params, rights=actor.rights)
    reason = reason_read(reason)
    if idempotency_key is not None and not 1 <= len(idempotency_key) <= MAX_KEY_CHARS:
        raise Invalid(f"Idempotency-Key must have 1 to {MAX_KEY_CHARS} characters")
    job_id = uuid7()
    if params.secret_values:
        # Before all else: only their fingerprints tell whether this is the same request again.
        params = secrets_keep(engine=engine, params=params, name=str(job_id))
    body_hash = _body_hash(engine_name, params, reason, on_conflict, origin)
    if replayed := _replayed(actor, idempotency_key, body_hash):
        return replayed
    if not engine.enabled:
        raise EngineDisabled(f"engine {engine_name} is disabled")
    # After the replay: a request that comes twice is answered as the first time.
    if takes_back is not None:
        left_check(takes_back, engine_view(engine))
    is_exclusive = params.kind not in SHARED_KINDS
    if is_exclusive and on_conflict == OnConflict.REFUSE:
        _stranger_check(engine)
    try:
        with transaction.atomic():
            _ENGINE.lock(engine.pk)  # one asker at a time
            if replayed := _replayed(actor, idempotency_key, body_hash):
                return replayed
            asked_at = now or db_now()
            holder = job_holder(engine=engine) if is_exclusive else None
            if holder is not None and on_conflict == OnConflict.REFUSE:
                raise _refuse(engine_name, holder, asked_at)
            if takes_back is not None:
                later_check(takes_back)
            return JobAsked(
                job=_insert(
                    job_id,
                    engine,
                    params,
                    reason,
                    on_conflict,
                    actor,
                    idempotency_key,
                    body_hash,
                    holder,
                    origin,
                    process,
                    asked_at,
                ),
                is_new=True,
            )
    except IntegrityError:
        # Two first uses of one key at once: the loser finds the winner's job.
        if replayed := _replayed(actor, idempotency_key, body_hash):
            return replayed
        raise


def _insert(
    job_id: UUID,
    engine: Engine,
    params: JobParams,
    reason: str,
    on_conflict: OnConflict,
    actor: Actor,
    idempotency_key: str | None,
    body_hash: str,
    holder: Job | None,
    origin: Origin | None,
    process: str,
    now: datetime,
) -> Job:
    kind, mode, timeout_s = params.kind, params.mode_in_force, params.timeout_in_force_s
    deadline_at, dispatch_by = deadlines(kind=kind, mode=mode, timeout_s=timeout_s, since=now)
    uploads_use(params=params, now=now)
    job = Job(
        id=job_id,
        engine=engine,
        kind=kind,
        params=params.stored(),
        mode=mode,
        timeout_s=timeout_s,
        origin=origin.job if origin else None,
        follow=origin.follow if origin else "",
        on_conflict=on_conflict,
        reason=reason,
        requested_by_id=actor.user_id,
        requested_by_name=actor.name,
        via=actor.via,
        token_prefix=actor.token_prefix,
        source_ip=actor.source_ip,
        request_id=actor.request_id[:64],
        actor_key=actor.key,
        idempotency_key=idempotency_key,
        body_hash=body_hash,
        state=JobState.ACCEPTED,
        phase=JobPhase.BLOCKED if holder else JobPhase.QUEUED,
        blocked=holder is not None,
        blocked_by=str(holder.pk) if holder else "",
        deadline_at=None if holder else deadline_at,
        dispatch_by=None if holder else dispatch_by,
        created_at=now,
        updated_at=now,
    )
    rows_insert([job])
    prefetched(job, "ranks", [])  # it is new: there are none
    prefetched(job, "followers", [])
    if holder is None:
        job_doorbell(job, now)
    job_announce(job)
    audit_append(
        action="job.accepted",
        stage=AuditStage.INTENT,
        actor=actor,
        now=now,
        process=process,
        engine_name=engine.name,
        job_id=job.pk,
        facts={
            "object": f"{kind} on {engine.name}",
            "kind": str(kind),
            "params": params.audited(),
            "on_conflict": str(on_conflict),
            "reason": reason,
            "idempotency_key": idempotency_key,
            "blocked_by": job.blocked_by or None,
            **({"origin": origin.job.pk, "follow": str(origin.follow)} if origin else {}),
        },
    )
    return job

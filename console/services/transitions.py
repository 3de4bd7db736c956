"""The one way a job changes state: locked, looked at, written; with its audit entry.

Whoever loses a race gets None and does nothing. Called by the job services only, inside their
transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any  # values of any field
from uuid import UUID

import msgspec
from django.db import connection, transaction

from console import dispatch, notify
from console.actors import Actor
from console.choices import (
    OPEN_STATES,
    SHARED_KINDS,
    STAGED_KINDS,
    STORAGE_KINDS,
    TERMINAL_STATES,
    TRANSITIONS,
    AuditStage,
    JobPhase,
    JobState,
    Mode,
    Via,
)
from console.models import Engine, Job, JobRankResult, Outbox
from console.prepared import Prepared
from console.rows import row_delete, row_update, rows_insert
from console.selectors.jobs import ranks_of
from console.services.audit import Fact, audit_append
from engine.protocol import RankResult

_JOB = Prepared(
    lambda pk: (
        Job.objects.select_related("engine", "requested_by")
        .select_for_update(of=("self",), no_key=True)
        .filter(pk=pk)
    ),
    UUID,
)
_ENGINE_OF = Prepared(
    lambda job: (
        Engine.objects.filter(jobs=job)
        .select_for_update(of=("self",), no_key=True)
        .values_list("pk")
    ),
    UUID,
)
# One that is not blocked comes first, and then none of those that are may go.
_NEXT = Prepared(
    lambda engine: (
        Job.objects.filter(engine=engine, state__in=sorted(OPEN_STATES))
        .exclude(kind__in=sorted(SHARED_KINDS))
        .order_by("blocked", "created_at", "id")
        .values_list("pk", "blocked")[:1]
    ),
    int,
)

# A job whose deadline begins later than its sending (or that has none) expires when no worker sent
# it by then.
DISPATCH_WINDOW_S = 30.0


def job_actor(job: Job) -> Actor:
    """The person behind a job, for entries that a worker writes on their behalf."""
    return Actor(
        user_id=job.requested_by_id,
        name=job.requested_by_name,
        via=Via(job.via),
        token_prefix=job.token_prefix,
        source_ip=job.source_ip,
        request_id=job.request_id,
    )


def deadlines(
    *, kind: str, mode: str, timeout_s: float, since: datetime
) -> tuple[datetime | None, datetime]:
    """(deadline_at, dispatch_by) of a job that may run from `since` on.

    The deadline of what is staged begins when that has ended, so nobody knows it yet.
    """
    if mode == Mode.IF_IDLE:
        return None, since + timedelta(seconds=DISPATCH_WINDOW_S)
    if kind in STAGED_KINDS:
        return None, since + timedelta(seconds=max(timeout_s, DISPATCH_WINDOW_S))
    deadline = since + timedelta(seconds=timeout_s)
    return deadline, deadline


_RANK_FIELDS = ("state", "message", "places", "staging", "effect_s", "interrupted")


def ranks_write(job: Job, ranks: Iterable[RankResult]) -> tuple[list[JobRankResult], bool]:
    """Bring the job's rank rows to `ranks`: (all of its rows by rank, whether one changed)."""
    known = {row.dp_rank: row for row in ranks_of(job.pk)}
    changed: list[JobRankResult] = []
    for rank in ranks:
        row = _rank_row(job, rank, known.get(rank.dp_rank))
        if row is not None:
            known[rank.dp_rank] = row
            changed.append(row)
    if changed:
        rows_insert(changed, unique=("job", "dp_rank"), update=_RANK_FIELDS)
    return [known[dp_rank] for dp_rank in sorted(known)], bool(changed)


def _rank_row(job: Job, rank: RankResult, was: JobRankResult | None) -> JobRankResult | None:
    """The rank's row as it is now; None when that is as it was."""
    places = (
        None
        if rank.places is None
        else {name: getattr(rank.places, name) for name in rank.places.__struct_fields__}
    )
    staging = None if rank.staging is None else msgspec.structs.asdict(rank.staging)
    row = JobRankResult(
        job=job,
        dp_rank=rank.dp_rank,
        state=str(rank.state),
        message=rank.message,
        places=places,
        # What it staged stays known when the end names only how it ended.
        staging=staging or (was.staging if was else None),
        effect_s=rank.effect_s if rank.effect_s is not None else (was.effect_s if was else None),
        interrupted=rank.interrupted,
    )
    if was is not None and all(getattr(row, one) == getattr(was, one) for one in _RANK_FIELDS):
        return None
    return row


def _weights_fact(view: object) -> dict[str, Fact] | None:
    """Which weights a stored view names; None for none."""
    if not isinstance(view, dict):
        return None
    return {name: str(view.get(name, "")) for name in ("version", "checksum", "source", "label")}


def _storage_fact(view: object) -> dict[str, Fact] | None:
    """Which backend, with which settings, a stored view names; None for none."""
    if not isinstance(view, dict):
        return None
    return {name: str(view.get(name, "")) for name in ("backend", "config_id")}


def storage_facts(job: Job) -> dict[str, Fact]:
    """What was attached before and is now, and the policies; nothing for other kinds of jobs."""
    if job.kind not in STORAGE_KINDS or not isinstance(job.reply, dict):
        return {}
    names = ("policies_before", "policies")
    return {
        "storage_before": _storage_fact(job.reply.get("storage_before")),
        "storage": _storage_fact(job.reply.get("storage")),
        **{name: job.reply.get(name) for name in names},
    }


def rank_facts(job: Job, rows: Iterable[JobRankResult]) -> list[Fact]:
    """What the audit keeps of each rank; of weights, what it served before and what it does now.

    What a rank serves that neither succeeded nor stayed as it was is not known: null. Nor is it of
    one that failed where the others were taken back: its undo may be what failed.
    """
    reply = job.reply if isinstance(job.reply, dict) else {}
    before, after = _weights_fact(reply.get("weights_before")), _weights_fact(reply.get("weights"))
    facts: list[Fact] = []
    for row in rows:
        fact: dict[str, Fact] = {
            "dp_rank": row.dp_rank,
            "state": row.state,
            "message": row.message,
        }
        if row.interrupted:
            fact["interrupted"] = row.interrupted
        if before is not None or after is not None:
            old = before or (after if job.state in _ALL_OLD else None)
            is_undone = before is not None and before == after
            served = {
                "succeeded": after,
                "failed": None if is_undone else old,
                "compensated": old,
            }
            now = old if job.state in _ALL_OLD else served.get(row.state)
            fact |= {"weights_before": old, "weights_after": now}
        facts.append(fact)
    return facts


# In these every rank serves what it served before.
_ALL_OLD = frozenset({JobState.FAILED, JobState.EXPIRED, JobState.CANCELLED})


def job_doorbell(job: Job, now: datetime) -> None:
    """Owe a doorbell, and ring it once the transaction is committed."""
    owed = Outbox(job=job, created_at=now, rung_at=now, rings=1)
    rows_insert([owed], unique=("job",), update=("created_at", "rung_at", "rings"))
    transaction.on_commit(partial(dispatch.job_ring, job.pk), robust=True)


def job_announce(job: Job) -> None:
    """Hint, once the transaction is committed, that the job changed."""
    has_ended = job.state in TERMINAL_STATES
    transaction.on_commit(partial(notify.job_changed, job.pk, has_ended=has_ended), robust=True)


def job_locked(job_id: UUID) -> Job | None:
    """The job with its engine and its asker, as nobody else can change it until the caller's
    transaction ends."""
    return _JOB.first(job_id)


def job_write(job: Job, values: Mapping[str, Any]) -> bool:
    """Write these fields of a job, and its next version; False if it is not at this version."""
    values = {**values, "version": job.version + 1}
    if not row_update(Job, {"id": job.pk, "version": job.version}, values):
        return False
    for name, value in values.items():
        setattr(job, name, str(value) if isinstance(value, str) else value)
    return True


def job_move(
    *,
    job_id: UUID,
    frm: Iterable[JobState],
    to: JobState,
    actor: Actor | None,
    process: str,
    now: datetime,
    attempt: int | None = None,
    where: Callable[[Job], bool] | None = None,
    ranks: Iterable[RankResult] = (),
    fields: Mapping[str, Any] | None = None,
    facts: Mapping[str, Fact] | None = None,
) -> Job | None:
    """Move a job to `to` if it is in `frm` (at `attempt`, matching `where`); None if it is not.

    `actor` None means the person behind the job. A terminal state also writes the outcome and lets
    the next blocked job of the engine go.
    """
    assert connection.in_atomic_block
    sources = frozenset(frm)
    assert all(to in TRANSITIONS[source] for source in sources), (sources, to)
    outcome, ranks = to in TERMINAL_STATES, list(ranks)
    if outcome:
        # Before the job's own row: an end also lets the next job go, which may be ending itself.
        _ENGINE_OF.lock(job_id)
    job = job_locked(job_id)
    if job is None or job.state not in sources or attempt not in (None, job.attempt):
        return None
    if where is not None and not where(job):
        return None
    values: dict[str, Any] = {"state": to, "updated_at": now, **(fields or {})}
    if to == JobState.CLAIMED:
        values["attempt"] = job.attempt + 1
    if outcome:
        values |= {"phase": None, "finished_at": now, "lease_until": None, "lease_owner": ""}
        values |= {"blocked": False, "blocked_by": ""}
    before = job.state
    if not job_write(job, values):
        return None
    rows_now = ranks_write(job, ranks)[0] if ranks or outcome else []
    if to == JobState.ACCEPTED:
        if not job.blocked:
            job_doorbell(job, now)
    elif JobState.ACCEPTED in sources:  # no other state owes one
        row_delete(Outbox, {"job": job.pk})
    job_announce(job)
    if outcome:
        job_let_next(engine_pk=job.engine_id, now=now)
    audit_append(
        action=f"job.{to}",
        stage=AuditStage.OUTCOME if outcome else AuditStage.TRANSITION,
        actor=actor or job_actor(job),
        now=now,
        process=process,
        engine_name=job.engine.name,
        job_id=job.pk,
        facts={
            "object": f"{job.kind} on {job.engine.name}",
            "kind": job.kind,
            "before": before,
            "after": str(to),
            "attempt": job.attempt,
            "epoch": job.engine_epoch,
            **(
                {
                    "ranks": rank_facts(job, rows_now),
                    "error": job.error,
                    "reason": job.reason,
                    **storage_facts(job),
                }
                if outcome
                else {}
            ),
            **(facts or {}),
        },
    )
    return job


def job_let_next(*, engine_pk: int, now: datetime) -> Job | None:
    """Let the oldest job that waits for another one go, if no open job is ahead of it."""
    first = _NEXT.first(engine_pk)
    return job_unblock(job_id=first[0], now=now) if first is not None and first[1] else None


def job_unblock(*, job_id: UUID, now: datetime) -> Job | None:
    """Start the clock of a blocked job and ring for a worker; inside the caller's transaction."""
    job = job_locked(job_id)
    if job is None or job.state != JobState.ACCEPTED or not job.blocked:
        return None
    deadline_at, dispatch_by = deadlines(
        kind=job.kind, mode=job.mode, timeout_s=job.timeout_s, since=now
    )
    job_write(  # it is locked, so at this version
        job,
        {
            "blocked": False,
            "blocked_by": "",
            "phase": JobPhase.QUEUED,
            "not_before": None,
            "deadline_at": deadline_at,
            "dispatch_by": dispatch_by,
            "note": "",
            "updated_at": now,
        },
    )
    job_doorbell(job, now)
    job_announce(job)
    return job

"""Read jobs: one, a page of them, who holds an engine."""

from __future__ import annotations

import base64
import binascii
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar
from uuid import UUID

from django.db.models import OuterRef, Q, QuerySet, Subquery

from console.access import Act, Rights
from console.choices import (
    HOLDING_STATES,
    OPEN_STATES,
    SHARED_KINDS,
    UNSENT_STATES,
    WAITING_KINDS,
    JobKind,
    JobState,
)
from console.exceptions import Invalid, JobNotFound
from console.models import Engine, Job, JobRankResult
from console.prepared import Prepared, prefetched
from console.selectors.access import engines_with, sees_engine
from console.selectors.engines import engine_named
from console.selectors.moment import one_moment

PAGE_ITEMS = 50

_JOB = Prepared(lambda pk: Job.objects.select_related("engine").filter(pk=pk), UUID)
_RANKS = Prepared(lambda job: JobRankResult.objects.filter(job=job), UUID)
_FOLLOWERS = Prepared(lambda job: Job.objects.filter(origin=job), UUID)
_OPEN = Prepared(lambda: Job.objects.filter(state__in=sorted(OPEN_STATES)).values_list("pk"))
# The newest jobs, and what comes with them: what each list begins with.
_NEWEST = Prepared(lambda: Job.objects.select_related("engine")[: PAGE_ITEMS + 1])
_NEWEST_RANKS = Prepared(
    lambda: JobRankResult.objects.filter(job__in=Job.objects.values("pk")[: PAGE_ITEMS + 1])
)
_NEWEST_FOLLOWERS = Prepared(
    lambda: Job.objects.filter(origin__in=Job.objects.values("pk")[: PAGE_ITEMS + 1])
)
_WAITING = Prepared(
    lambda pk: Job.objects.select_related("engine").filter(
        pk=pk, state=JobState.ACCEPTED, blocked=False
    ),
    UUID,
)
_VERSION = Prepared(lambda pk: Job.objects.filter(pk=pk).values_list("version"), UUID)
_EXCLUSIVE = Prepared(
    lambda engine: (
        Job.objects.filter(engine=engine, state__in=sorted(OPEN_STATES))
        .exclude(kind__in=sorted(SHARED_KINDS))
        .order_by("created_at", "id")
        .values_list("pk", "state")
    ),
    int,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """Items, newest first, and where the next page begins (None at the end)."""

    items: list[T]
    next_cursor: str | None


def cursor_encode(*parts: str) -> str:
    """An opaque place in a list."""
    return base64.urlsafe_b64encode("|".join(parts).encode()).decode().rstrip("=")


def cursor_decode(cursor: str, count: int) -> list[str]:
    """The `count` parts of a cursor. Raises Invalid."""
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except (binascii.Error, ValueError) as error:
        raise Invalid("cursor is not one that this list gave") from error
    parts = raw.split("|")
    if len(parts) != count:
        raise Invalid("cursor is not one that this list gave")
    return parts


def _rows() -> QuerySet[Job]:
    return Job.objects.select_related("engine").prefetch_related("ranks", "followers")


def _seen(rows: QuerySet[Job], rights: Rights) -> QuerySet[Job]:
    """Those of engines that one may see."""
    if rights.may_everywhere(Act.READ):
        return rows
    return rows.filter(engine__in=engines_with(rights, removed=True).values("pk"))


def job_get(*, job_id: UUID, rights: Rights) -> Job:
    """One job with its engine and ranks.

    Raises JobNotFound, also for one that is there for others only; Forbidden without any role.
    """
    rights.require(Act.READ)
    with one_moment():
        job = _JOB.first(job_id)
        if job is not None:
            prefetched(job, "ranks", ranks_of(job_id))
            prefetched(job, "followers", _FOLLOWERS.all(job_id))
    if job is None or not sees_engine(rights, job.engine):
        raise JobNotFound(f"no job has the id {job_id}")
    return job


def ranks_of(job_id: UUID) -> list[JobRankResult]:
    """What each rank did of a job, by rank; none before the engine has spoken."""
    return _RANKS.all(job_id)


def job_waiting(job_id: UUID) -> Job | None:
    """The job with its engine, if it waits for a worker and for nothing else."""
    return _WAITING.first(job_id)


def job_version(*, job_id: UUID) -> int:
    """The job's version, cheaply; 0 when there is none."""
    found = _VERSION.first(job_id)
    return found[0] if found is not None else 0


def job_list(
    *,
    rights: Rights,
    cursor: str | None = None,
    engine_name: str | None = None,
    state: JobState | None = None,
    kind: JobKind | None = None,
    actor: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
    is_open: bool = False,
    limit: int = PAGE_ITEMS,
) -> Page[Job]:
    """A page of jobs, newest first; `is_open` keeps those that have not ended, `actor` those that
    this name asked for, `since` and `until` (not itself) those that were asked for then.

    Raises Invalid for a bad cursor, EngineNotFound; Forbidden without any role.
    """
    rights.require(Act.READ)
    asked = (cursor, engine_name, state, kind, actor or None, since, until, is_open or None)
    if rights.may_everywhere(Act.READ) and limit == PAGE_ITEMS and set(asked) == {None}:
        return _page(_newest(), limit)
    rows = _seen(_rows(), rights).order_by("-created_at", "-id")
    if engine_name is not None:
        rows = rows.filter(engine=engine_named(engine_name, rights=rights))
    if state is not None:
        rows = rows.filter(state=state)
    if kind is not None:
        rows = rows.filter(kind=kind)
    if actor:
        rows = rows.filter(requested_by_name=actor)
    if since is not None:
        rows = rows.filter(created_at__gte=since)
    if until is not None:
        rows = rows.filter(created_at__lt=until)
    if is_open:
        rows = rows.filter(state__in=OPEN_STATES)
    if cursor is not None:
        when_text, id_text = cursor_decode(cursor, 2)
        try:
            when, last_id = datetime.fromisoformat(when_text), UUID(id_text)
        except ValueError as error:
            raise Invalid("cursor is not one that this list gave") from error
        if when.tzinfo is None:
            raise Invalid("cursor is not one that this list gave")
        rows = rows.filter(Q(created_at__lt=when) | Q(created_at=when, id__lt=last_id))
    with one_moment():
        return _page(list(rows[: limit + 1]), limit)


def _newest() -> list[Job]:
    """A page of the newest jobs and one more, with their ranks and followers."""
    with one_moment():
        jobs = _NEWEST.all()
        ranks, followers = _NEWEST_RANKS.all(), _NEWEST_FOLLOWERS.all()
    ranks_of_job: dict[UUID, list[JobRankResult]] = defaultdict(list)
    followers_of_job: dict[UUID | None, list[Job]] = defaultdict(list)
    for rank in ranks:
        ranks_of_job[rank.job_id].append(rank)
    for follower in followers:
        followers_of_job[follower.origin_id].append(follower)
    for job in jobs:
        prefetched(job, "ranks", ranks_of_job[job.pk])
        prefetched(job, "followers", followers_of_job[job.pk])
    return jobs


def _page(items: list[Job], limit: int) -> Page[Job]:
    """The first `limit` of these; there is a next page when there are more."""
    more = len(items) > limit
    items = items[:limit]
    return Page(
        items=items,
        next_cursor=cursor_encode(items[-1].created_at.isoformat(), str(items[-1].pk))
        if more
        else None,
    )


def jobs_open(*, rights: Rights, engine_name: str | None = None) -> list[Job]:
    """All jobs that have not ended, newest first."""
    rows = _seen(_rows(), rights).filter(state__in=OPEN_STATES)
    if engine_name is not None:
        rows = rows.filter(engine__name=engine_name)
    with one_moment():
        return list(rows)


def jobs_pending(*, rights: Rights) -> list[Job]:
    """All jobs that have not ended: unknown ones first, then by deadline, then those without one.

    Raises Forbidden without any role.
    """
    rights.require(Act.READ)
    never = datetime.max.replace(tzinfo=UTC)
    return sorted(
        jobs_open(rights=rights),
        key=lambda job: (
            job.state != JobState.RECONCILING,
            job.deadline_at or job.dispatch_by or never,
            job.created_at,
        ),
    )


def jobs_newest() -> dict[int, Job]:
    """The newest job of each engine that has one, by the engine's key."""
    newest = Job.objects.filter(engine=OuterRef("pk")).order_by("-created_at", "-id")
    ids = Engine.objects.annotate(last=Subquery(newest.values("pk")[:1])).values("last")
    return {job.engine_id: job for job in Job.objects.filter(pk__in=ids)}


def jobs_open_count(*, rights: Rights) -> int:
    """How many jobs have not ended."""
    if rights.may_everywhere(Act.READ):  # asked with every page and every reading
        return _OPEN.count()
    return _seen(Job.objects.filter(state__in=OPEN_STATES), rights).count()


def job_holder(*, engine: Engine) -> Job | None:
    """The job that a new one would have to wait for: the one at work, else the oldest open one."""
    found = _EXCLUSIVE.all(engine.pk)  # at most one is at work, and mostly there is none at all
    at_work = next((pk for pk, state in found if state in HOLDING_STATES), None)
    pk = at_work or (found[0][0] if found else None)
    return _JOB.first(pk) if pk else None


def job_waits(job: Job) -> bool:
    """True for a job that waits for idle, in a mode, until a deadline; not for a forced detach."""
    return job.kind in WAITING_KINDS and not job.params.get("force")


def remaining_s(job: Job, now: datetime) -> float | None:
    """Seconds until the job's deadline, or until it must have been sent; None while not known.

    That is: while blocked, and while the weights of an update are staged.
    """
    until = job.deadline_at or (job.dispatch_by if job.state in UNSENT_STATES else None)
    if until is None:
        return None
    return round(max(0.0, (until - now).total_seconds()), 1)

"""POST /jobs, GET /jobs, GET /jobs/{id}, POST /jobs/{id}/cancel | extend | force | retry | undo."""

import re
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Status

from api.auth import actor, rights_now
from api.query import only_query
from api.schemas.inputs import (
    CancelIn,
    CreateQuery,
    ExtendIn,
    FollowIn,
    ForceIn,
    JobIn,
    JobQuery,
    WaitQuery,
)
from api.schemas.outputs import JobOut, JobPage, Problem
from api.schemas.weights import PlanOut
from console.choices import OnConflict
from console.exceptions import Invalid
from console.models import Job
from console.requests import rights_in
from console.selectors.jobs import job_get, job_list, job_version
from console.selectors.payloads import is_final, job_payload, plan_payload
from console.selectors.plans import job_plan
from console.services.job_again import job_retry, job_undo
from console.services.job_control import job_cancel, job_extend, job_force
from console.services.jobs import JobAsked, job_create
from console.services.reasons import reason_read

router = Router(tags=["jobs"])

POLL_S = 0.15
_ETAG = re.compile(r'^"([0-9]{1,9})"$')
_KEY = re.compile(r"^[\x21-\x7e]{1,200}$")
_PROBLEMS = {401: Problem, 403: Problem, 404: Problem, 409: Problem, 422: Problem, 503: Problem}
_BODY_PROBLEMS = {400: Problem, 412: Problem, 413: Problem, 415: Problem, **_PROBLEMS}


def _idempotency_key(request: HttpRequest) -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is not None and not _KEY.match(key):
        raise Invalid("Idempotency-Key must be 1 to 200 printable ASCII characters, no spaces")
    return key


def _if_match(request: HttpRequest) -> int | None:
    """The version that the asker has read; None when any will do. Raises Invalid."""
    text = request.headers.get("If-Match", "").strip()
    if text in ("", "*"):
        return None
    found = _ETAG.match(text)
    if found is None:
        raise Invalid("If-Match must be an ETag that a job was given with")
    return int(found[1])


def _tagged(response: HttpResponse, found: Job) -> dict[str, Any]:
    """The job, and the ETag that If-Match takes."""
    response["ETag"] = f'"{found.version}"'
    return job_payload(found)


@router.post(
    "",
    response={202: JobOut, 200: JobOut | PlanOut, **_BODY_PROBLEMS},
    url_name="jobs",
    summary="Ask for a job, or only for its plan",
)
@only_query("dry_run", "wait_s")
def create(
    request: HttpRequest, response: HttpResponse, body: JobIn, query: Query[CreateQuery]
) -> Status:
    """Accept a job (202), or give the one that the same Idempotency-Key made (200).

    With `dry_run=true` nothing is created: the answer (200) is the plan. With `wait_s` the answer
    comes once the job has ended, or that time is over.
    """
    asked_for = body.root
    if query.dry_run:
        plan = job_plan(
            engine_name=asked_for.engine,
            params=asked_for.params,
            rights=rights_in(request),
            on_conflict=OnConflict(asked_for.on_conflict),
        )
        reason_read(asked_for.reason)
        return Status(200, plan_payload(plan))
    asked = job_create(
        engine_name=asked_for.engine,
        params=asked_for.params,
        reason=asked_for.reason,
        on_conflict=OnConflict(asked_for.on_conflict),
        actor=actor(request),
        idempotency_key=_idempotency_key(request),
    )
    ended = _awaited(request, asked.job, query.wait_s)
    return _accepted(response, JobAsked(ended, asked.is_new))


def _awaited(request: HttpRequest, found: Job, wait_s: float) -> Job:
    """The job once it has ended, or as it is after `wait_s`, for whoever may still read it.

    Raises AuthenticationError, Forbidden, JobNotFound when they may not any more.
    """
    ends, version = time.monotonic() + wait_s, found.version
    is_over, has_waited = is_final(found), False
    while not is_over and (left_s := ends - time.monotonic()) > 0:
        close_old_connections()  # none is held while waiting
        time.sleep(min(POLL_S, left_s))
        has_waited = True
        if job_version(job_id=found.pk) != version:
            found = job_get(job_id=found.pk, rights=rights_now(request))
            is_over, version = is_final(found), found.version
    return job_get(job_id=found.pk, rights=rights_now(request)) if has_waited else found


@router.get(
    "",
    response={200: JobPage, 401: Problem, 404: Problem, 422: Problem},
    summary="List jobs",
)
@only_query("cursor", "engine", "state", "kind", "actor", "since", "until", "open")
def jobs(request: HttpRequest, query: Query[JobQuery]) -> dict[str, Any]:
    """Jobs, newest first."""
    page = job_list(
        rights=rights_in(request),
        cursor=query.cursor,
        engine_name=query.engine,
        state=query.state,
        kind=query.kind,
        actor=query.actor,
        since=query.since,
        until=query.until,
        is_open=query.open,
    )
    return {"items": [job_payload(job) for job in page.items], "next_cursor": page.next_cursor}


@router.get(
    "/{uuid:job_id}",
    response={200: JobOut, 304: None, 401: Problem, 404: Problem, 422: Problem},
    url_name="job",
    summary="Read a job, or wait for its end",
)
@only_query("wait_s")
def job(
    request: HttpRequest, response: HttpResponse, job_id: UUID, query: Query[WaitQuery]
) -> Status:
    """One job; with `wait_s`, once it has ended or that time is over."""
    found = job_get(job_id=job_id, rights=rights_in(request))
    found = _awaited(request, found, query.wait_s)
    response["ETag"] = f'"{found.version}"'
    if request.headers.get("If-None-Match", "").strip() == response["ETag"]:
        return Status(304, None)
    return Status(200, job_payload(found))


@router.post(
    "/{uuid:job_id}/cancel", response={200: JobOut, **_BODY_PROBLEMS}, summary="Cancel a job"
)
@only_query()
def cancel(
    request: HttpRequest, response: HttpResponse, job_id: UUID, body: CancelIn | None = None
) -> dict[str, Any]:
    """Cancel: at once if unsent, else the engine is asked; the job ends by what it says."""
    reason = body.reason if body is not None else ""
    done = job_cancel(
        job_id=job_id, actor=actor(request), reason=reason, if_version=_if_match(request)
    )
    return _tagged(response, done)


_FOLLOWS = {202: JobOut, 200: JobOut, **_BODY_PROBLEMS}


@router.post("/{uuid:job_id}/retry", response=_FOLLOWS, summary="Ask for the same again")
@only_query()
def retry(
    request: HttpRequest, response: HttpResponse, job_id: UUID, body: FollowIn | None = None
) -> Status:
    """A new job (202), linked to this one, with its recorded parameters, on every rank."""
    return _followed(request, response, job_retry, job_id, body)


@router.post("/{uuid:job_id}/undo", response=_FOLLOWS, summary="Ask for its inverse")
@only_query()
def undo(
    request: HttpRequest, response: HttpResponse, job_id: UUID, body: FollowIn | None = None
) -> Status:
    """A new job (202), linked to this one, that puts back what it changed."""
    return _followed(request, response, job_undo, job_id, body)


def _followed(
    request: HttpRequest,
    response: HttpResponse,
    follow: Callable[..., JobAsked],
    job_id: UUID,
    body: FollowIn | None,
) -> Status:
    body = body or FollowIn()
    asked = follow(
        job_id=job_id,
        actor=actor(request),
        reason=body.reason,
        on_conflict=OnConflict(body.on_conflict),
        idempotency_key=_idempotency_key(request),
        if_version=_if_match(request),
    )
    return _accepted(response, asked)


def _accepted(response: HttpResponse, asked: JobAsked) -> Status:
    payload = _tagged(response, asked.job)
    response["Location"] = payload["links"]["self"]
    return Status(202 if asked.is_new else 200, payload)


@router.post(
    "/{uuid:job_id}/extend", response={200: JobOut, **_BODY_PROBLEMS}, summary="Move its deadline"
)
@only_query()
def extend(
    request: HttpRequest, response: HttpResponse, job_id: UUID, body: ExtendIn
) -> dict[str, Any]:
    """Move the deadline of a waiting job."""
    done = job_extend(
        job_id=job_id, by_s=body.by_s, actor=actor(request), if_version=_if_match(request)
    )
    return _tagged(response, done)


@router.post(
    "/{uuid:job_id}/force", response={200: JobOut, **_BODY_PROBLEMS}, summary="Take a harsher mode"
)
@only_query()
def force(
    request: HttpRequest, response: HttpResponse, job_id: UUID, body: ForceIn | None = None
) -> dict[str, Any]:
    """Take the next harsher mode."""
    done = job_force(job_id=job_id, actor=actor(request), if_version=_if_match(request))
    return _tagged(response, done)

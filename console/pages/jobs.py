"""The list of jobs, one job, and what can be done to it while it is pending."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from console.access import Rights
from console.choices import HARSHER, STORAGE_KINDS, WEIGHT_UPDATES, JobKind, JobState, Mode, Via
from console.clock import db_now
from console.exceptions import Conflict, ConsoleError, Invalid
from console.models import Job
from console.pages.job_cells import job_cells, job_list_cells, rank_rows
from console.pages.kinds import asked_of, asked_version, job_title, kind_words
from console.pages.pending import EXTEND_BY_S
from console.pages.shell import page, page_render, see_other
from console.requests import actor_of, rights_in
from console.selectors.access import engines_with
from console.selectors.audit import audit_of_job
from console.selectors.engines import engine_view
from console.selectors.jobs import job_get, job_list, job_waits, jobs_open_count
from console.services.job_control import job_cancel, job_extend, job_force
from console.templatetags.q_tags import Cells, short


@page
@require_safe
def jobs(request: HttpRequest) -> HttpResponse:
    """A page of jobs, newest first, filtered by engine, state, kind and who asked."""
    engine_name = request.GET.get("engine") or None
    state_text = request.GET.get("state", "")
    if state_text and state_text not in (*JobState.values, "open"):
        raise Invalid(f"state must be one of open, {', '.join(JobState.values)}")
    kind_text, actor = request.GET.get("kind", ""), request.GET.get("actor", "").strip()
    if kind_text and kind_text not in JobKind.values:
        raise Invalid(f"kind must be one of {', '.join(JobKind.values)}")
    if "\x00" in actor or len(actor) > 150:
        raise Invalid("actor must be somebody's name")
    cursor = request.GET.get("cursor") or None
    asked = {"engine": engine_name, "state": state_text, "kind": kind_text, "actor": actor}
    query = urlencode({name: value for name, value in asked.items() if value})
    rights = rights_in(request)
    found = job_list(
        rights=rights,
        cursor=cursor,
        engine_name=engine_name,
        state=JobState(state_text) if state_text in JobState.values else None,
        kind=JobKind(kind_text) if kind_text else None,
        actor=actor,
        is_open=state_text == "open",
    )
    is_plain = not (cursor or query)
    return page_render(
        request,
        "jobs.html",
        nav="jobs",
        title="Jobs",
        context={
            "page": found,
            "cells": job_list_cells(found.items, slot="jobs_rows"),
            "engine_name": engine_name or "",
            "state": state_text,
            "states": JobState.values,
            "engine_names": list(engines_with(rights).values_list("name", flat=True)),
            "num_open": jobs_open_count(rights=rights),
            "cursor": cursor,
            "kind": kind_text,
            "kinds": JobKind.choices,
            "actor": actor,
            "query": query,
            "is_filtered": bool(query),
            # Only the unfiltered first page grows by itself.
            "grows": is_plain,
            "topics": "jobs",
        },
    )


def job_page_cells(job: Job, rights: Rights) -> Cells:
    """All live cells of a job's page."""
    view = cache(partial(engine_view, job.engine))
    return job_cells(job, audit_of_job(job_id=job.pk), view, db_now(), rights)


@page
@require_safe
def job(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """One job."""
    rights = rights_in(request)
    found = job_get(job_id=job_id, rights=rights)
    cells = job_page_cells(found, rights)
    return page_render(
        request,
        "job.html",
        nav="jobs",
        title=f"{job_title(found)} {found.engine.name}, job {short(found.pk)}",
        context={
            "job": found,
            "followers": sorted(found.followers.all(), key=lambda one: one.created_at),
            "short": short(found.pk),
            "words": kind_words(found.kind),
            "to_version": asked_version(found),
            "job_title": job_title(found),
            "waits": job_waits(found),
            "is_weights": found.kind in WEIGHT_UPDATES,
            "is_storage": found.kind in STORAGE_KINDS,
            "asked": asked_of(found),
            "cells": cells,
            "rows": rank_rows(found, 0),
            "score_ids": [f"sc-{n}" for n in range(8)],
            "topics": f"job:{found.pk}",
        },
    )


def _act(request: HttpRequest, job_id: UUID, do: Callable[[], Job], said: str) -> HttpResponseBase:
    """Do it; answer a script with a sentence, a plain form with the job's page."""
    is_script = "application/json" in request.headers.get("Accept", "")
    try:
        do()
    except ConsoleError as error:
        if is_script:
            return JsonResponse({"error": error.message, "code": error.code}, status=error.status)
        raise
    if is_script:
        return JsonResponse({"said": said})
    return see_other(reverse("job", args=[job_id]))


@page
@require_POST
def cancel(request: HttpRequest, job_id: UUID) -> HttpResponseBase:
    """Cancel it."""
    actor = actor_of(request, via=Via.UI)
    return _act(
        request, job_id, lambda: job_cancel(job_id=job_id, actor=actor), "Cancel was asked for"
    )


@page
@require_POST
def extend(request: HttpRequest, job_id: UUID) -> HttpResponseBase:
    """Move its deadline."""
    actor = actor_of(request, via=Via.UI)
    try:
        by_s = float(request.POST.get("by_s", EXTEND_BY_S))
    except ValueError as error:
        raise Invalid("by_s must be a number of seconds") from error
    if not math.isfinite(by_s):
        raise Invalid("by_s must be a finite number of seconds")
    return _act(
        request,
        job_id,
        lambda: job_extend(job_id=job_id, by_s=by_s, actor=actor),
        f"Deadline moved by {by_s:g} seconds",
    )


@page
@require_POST
def force(request: HttpRequest, job_id: UUID) -> HttpResponseBase:
    """Take the next harsher mode; refused when it is not the one that the page offered."""
    actor = actor_of(request, via=Via.UI)
    offered = request.POST.get("to", "")

    def do() -> Job:
        harsher = HARSHER.get(Mode(job_get(job_id=job_id, rights=actor.rights).mode), "")
        if offered and offered != harsher:
            raise Conflict(f"this page offered {offered}; meanwhile the next mode is {harsher}")
        return job_force(job_id=job_id, actor=actor)

    return _act(request, job_id, do, f"Forced to {offered}" if offered else "Forced")

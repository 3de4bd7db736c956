"""The engine page: per rank, why it is not idle; the pending operation; Try it; recent jobs."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from console.access import Rights
from console.choices import JobKind, JobState
from console.clock import db_now
from console.exceptions import NotFound
from console.models import Job
from console.pages import words
from console.pages.completion import MAX_NEW_TOKENS, MAX_PROMPT_CHARS
from console.pages.engine_cells import engine_cells
from console.pages.job_cells import job_list_cells
from console.pages.kinds import kind_words
from console.pages.pending import panel_of_engine, panel_render
from console.pages.shell import page, page_render
from console.requests import rights_in
from console.selectors.engines import EngineView, engine_get
from console.selectors.jobs import job_get, job_list
from console.templatetags.q_tags import Cells, at, icon, short

RECENT_JOBS = 6
# Those with a small form of their own: (kind, label, icon).
OPERATIONS = [
    (str(kind), kind_words(kind).name, kind_words(kind).icon)
    for kind in (
        *(JobKind.PAUSE_GENERATION, JobKind.CONTINUE_GENERATION, JobKind.ABORT_REQUESTS),
        *(JobKind.RELEASE_MEMORY, JobKind.RESUME_MEMORY),
        *(JobKind.REPAIR, JobKind.UPDATE_WEIGHT_VERSION),
    )
]


def _pending_job(view: EngineView, rights: Rights) -> Job | None:
    if view.pending is None or view.pending.job_id is None:
        return None
    try:
        return job_get(job_id=view.pending.job_id, rights=rights)
    except NotFound:
        return None


def _banner(view: EngineView) -> SafeString:
    """No news from the engine: since when, and what that does to this page."""
    if view.online:
        return SafeString("")
    since = (
        format_html(" since {}", at(words.heard_at(view)))
        if words.heard_at(view)
        else " since it was registered"
    )
    return format_html(
        '<div class="banner" data-key="offline">{}<div><b>No news from {}{}.</b> {}. Numbers are '
        "dashes; weights are the last known, hatched. Actions that change it are off. The console "
        "listens and shows it as soon as it is back.</div></div>",
        icon("wifi-off"),
        view.name,
        since,
        view.note[:1].upper() + view.note[1:] if view.note else "The engine is silent",
    )


def _unknown(jobs: list[Job]) -> SafeString:
    """A job of this engine whose outcome is not known yet."""
    job = next((one for one in jobs if one.state == JobState.RECONCILING), None)
    if job is None:
        return SafeString("")
    return format_html(
        '<div class="next n-unk" data-key="{0}">{1}<div><b>Job {2} is in flight and its outcome is '
        "not known.</b> The engine’s journal will answer once it is back. "
        '<a href="/jobs/{0}">Open job {2}</a></div></div>',
        job.pk,
        icon("question-mark"),
        short(job.pk),
    )


def engine_page_cells(view: EngineView, rights: Rights) -> Cells:
    """All live cells of an engine's page."""
    now = db_now()
    jobs = job_list(rights=rights, engine_name=view.name, limit=RECENT_JOBS).items
    panel = panel_of_engine(view, _pending_job(view, rights), now, rights)
    cells = {
        **engine_cells(view, now),
        **job_list_cells(jobs, slot="recent_rows"),
        "eng-banner": _banner(view),
        "eng-unknown": _unknown(jobs),
        "pending-slot": panel_render(panel),
    }
    return cells | panel.cells() if panel is not None else cells


@page
@require_safe
def engine(request: HttpRequest, name: str) -> HttpResponse:
    """One engine."""
    rights = rights_in(request)
    view = engine_get(name=name, rights=rights)
    return page_render(
        request,
        "engine.html",
        nav="fleet",
        title=view.name,
        context={
            "view": view,
            "cells": engine_page_cells(view, rights),
            "operations": OPERATIONS,
            "topics": f"engine:{view.name}",
            "max_new_tokens": MAX_NEW_TOKENS,
            "max_prompt_chars": MAX_PROMPT_CHARS,
        },
    )

"""The fleet: every engine in one row, and what needs somebody."""

from __future__ import annotations

from collections.abc import Iterable

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from console.access import Act, Rights
from console.choices import JobState
from console.clock import db_now
from console.models import Job
from console.pages.engine_cells import fleet_row_cells
from console.pages.engine_pages import slice_of
from console.pages.shell import page, page_render
from console.pages.words import rank_words
from console.requests import rights_in
from console.selectors.engines import EngineView, engine_list
from console.selectors.jobs import jobs_newest, jobs_open
from console.templatetags.q_tags import Cells, icon


def _names(views: Iterable[EngineView]) -> str:
    names = [view.name for view in views]
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _condition(glyph: str, label: str, count: int, tone: str, note: object) -> SafeString:
    return format_html(
        '<div class="{}"><span class="lab">{}{}</span><div class="val">{}</div>'
        '<div class="note">{}</div></div>',
        tone if count else "zero",
        icon(glyph),
        label,
        count,
        note if count else "none",
    )


def condition_cells(views: list[EngineView], open_jobs: list[Job]) -> Cells:
    """The strip: zeros are printed."""
    pending = [view for view in views if view.pending is not None and view.online]
    unknown = [job for job in open_jobs if job.state == JobState.RECONCILING]
    offline = [view for view in views if not view.online]
    fenced = [view for view in views if "fenced" in rank_words(view)]
    num_fenced = sum(rank_words(view).count("fenced") for view in fenced)
    return {
        "cond-pending": _condition(
            "hourglass-empty", "Pending operations", len(pending), "on-act", _names(pending)
        ),
        "cond-unknown": _condition(
            "question-mark",
            "Unknown outcomes",
            len(unknown),
            "on-unk",
            "the engine’s journal is asked",
        ),
        "cond-offline": _condition(
            "wifi-off", "Engines offline", len(offline), "on-bad", _names(offline)
        ),
        "cond-fenced": _condition("lock", "Fenced ranks", num_fenced, "on-bad", _names(fenced)),
    }


def fleet_cells(views: list[EngineView], rights: Rights, *, is_part: bool) -> Cells:
    """All live cells of a page of the fleet, and the rows themselves for engines that are new.

    Sums and conditions are of the whole fleet that one may see, of which the page may be a part.
    """
    open_jobs, now = jobs_open(rights=rights), db_now()
    everyone = engine_list(rights=rights) if is_part else views
    running = sum(rank.running for view in everyone if view.online for rank in view.ranks)
    waiting = sum(rank.waiting for view in everyone if view.online for rank in view.ranks)
    num_ranks = sum(len(view.ranks) for view in everyone)
    cells: Cells = {
        "fleet-sum": format_html(
            "<span>{} {}, {} ranks</span><span>{} requests running, {} waiting</span>",
            len(everyone),
            "engine" if len(everyone) == 1 else "engines",
            num_ranks,
            running,
            waiting,
        ),
        **condition_cells(everyone, open_jobs),
    }
    newest = jobs_newest()
    for view in views:
        cells |= fleet_row_cells(view, newest.get(view.engine.pk), now)
    cells["fleet_rows"] = render_to_string(
        "components/fleet_rows.html", {"engines": views, "cells": cells}
    )
    return cells


@page
@require_safe
def fleet(request: HttpRequest) -> HttpResponse:
    """Every engine; how to register one while there is none."""
    rights = rights_in(request)
    found = slice_of(request)
    views = found.views
    template = "fleet.html" if views or found.is_part else "empty.html"
    return page_render(
        request,
        template,
        nav="fleet",
        title="Fleet",
        context={
            "is_whole": rights.may_everywhere(Act.READ),
            "engines": views,
            "cells": fleet_cells(views, rights, is_part=found.is_part),
            "slice": found,
            "topics": found.topic,
        },
    )

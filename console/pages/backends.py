"""Storage backends: which engine has which attached, how its ranks fare with it, what is odd."""

from __future__ import annotations

from collections import Counter

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from console.clock import db_now
from console.models import Job
from console.pages.backend_cells import backend_cells, backend_row_cells, breaker_word
from console.pages.engine_pages import slice_of
from console.pages.job_storage import named
from console.pages.shell import page, page_render
from console.requests import rights_in
from console.selectors.engines import EngineView, engine_get
from console.selectors.storage import Attached, attached_by, attached_of
from console.templatetags.q_tags import Cells

ALL_RANKS = "all ranks"


def _summary(views: list[EngineView]) -> str:
    """`3 with mooncake, 1 with none; 2 breakers not closed`."""
    attached = [(view, attached_of(view)) for view in views if view.state is not None]
    counts = Counter(one.backend if one else "none" for _, one in attached)
    bad = sum(
        breaker_word(view, rank) in ("open", "half-open", "stalled")
        for view in views
        for rank in view.ranks
    )
    kinds = ", ".join(f"{count} with {name}" for name, count in counts.most_common())
    noun = "breaker" if bad == 1 else "breakers"
    return f"{kinds or 'no engine has been seen'}; {bad} {noun} not closed"


def backends_cells(views: list[EngineView]) -> Cells:
    """All live cells of the list."""
    now = db_now()
    cells: Cells = {}
    for view in views:
        cells |= backend_row_cells(view, now)
    return cells


@page
@require_safe
def backends(request: HttpRequest) -> HttpResponse:
    """Every engine and its backend."""
    found = slice_of(request)
    views = found.views
    return page_render(
        request,
        "backends.html",
        nav="backends",
        title="Backends",
        context={
            "views": views,
            "cells": backends_cells(views),
            "summary": _summary(views),
            "slice": found,
            "topics": found.topic,
        },
    )


def settings_of(attached: Attached) -> list[tuple[str, list[tuple[str, object]]]]:
    """(whom, its settings): of all ranks, then the overrides of each that has some."""
    found = [(ALL_RANKS, sorted(attached.config.items()))]
    for rank, one in sorted(attached.rank_configs.items(), key=lambda item: int(item[0])):
        found.append((f"rank {rank}", sorted(one.items())))
    return found


@page
@require_safe
def backend_engine(request: HttpRequest, name: str) -> HttpResponse:
    """One engine's backend, rank by rank."""
    view = engine_get(name=name, rights=rights_in(request))
    attached = attached_of(view)
    job: Job | None = attached_by(view)
    return page_render(
        request,
        "backend_engine.html",
        nav="backends",
        title=f"Backend of {view.name}",
        context={
            "view": view,
            "attached": attached,
            "named": named(attached),
            "settings": settings_of(attached) if attached else [],
            "job": job,
            "cells": backend_cells(view, db_now()),
            "topics": f"engine:{view.name}",
        },
    )

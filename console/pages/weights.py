"""Weights: which rank serves which, by its own checksum, and where they came from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from console.clock import db_now
from console.pages import words
from console.pages.engine_pages import slice_of
from console.pages.shell import page, page_render
from console.pages.weights_cells import (
    MATRIX_RANKS,
    condition,
    engine_matrix_cells,
    engine_note,
    fenced_ranks,
    group_condition,
    odd_ranks,
    rank_rows_cells,
    source_of,
)
from console.requests import rights_in
from console.selectors.engines import EngineView, engine_get
from console.selectors.weights import (
    Group,
    Push,
    Weights,
    groups_of,
    lineage_of,
    previous_of,
)
from console.templatetags.q_tags import DASH, Cells, fine, short, size, wv


@dataclass(frozen=True)
class Line:
    """A line of the lineage, ready to be printed."""

    key: str
    at: datetime | None
    version: str
    checksum: str
    word: str
    source: SafeString
    who: str
    via: str
    to: str
    to_url: str
    pause: str
    job_url: str
    job_short: str
    return_url: str
    why_not: str
    is_served: bool


def _line(push: Push, served: dict[str, Weights]) -> Line:
    job, weights = push.job, push.weights
    engine = job.engine.name if job else ""
    now = served.get(engine) if job else None
    everyone = {one.is_same_as for one in served.values()}
    is_served = weights is not None and (
        weights.is_same_as == now.is_same_as if now else weights.is_same_as in everyone
    )
    back = weights is not None and push.is_settled and not is_served
    target = engine or (next(iter(served)) if len(served) == 1 else "")
    return Line(
        key=short(job.pk) if job else f"start-{weights.version if weights else ''}",
        at=push.at,
        version=weights.version if weights else "–",
        checksum=weights.checksum[:8] if weights else "",
        word=words.job_word(job) if job else "succeeded",
        source=source_of(weights),
        who=job.requested_by_name if job else "launch",
        via=str(job.get_via_display()) if job else "at start",
        to=engine or target or "every engine",
        to_url=reverse("weights-engine", args=[engine or target]) if engine or target else "",
        pause=fine(push.pause_s),
        job_url=reverse("job", args=[job.pk]) if job else "",
        job_short=short(job.pk) if job else "",
        return_url=f"{reverse('weights-return', args=[target])}?version={_quoted(weights)}"
        if back and target and weights and not weights.why_no_return
        else "",
        why_not=weights.why_no_return if back and weights else "",
        is_served=is_served,
    )


def _quoted(weights: Weights) -> str:
    return quote(f"{weights.version}@{weights.checksum}")


def _served(views: list[EngineView]) -> dict[str, Weights]:
    found = {}
    for view in views:
        weights = Weights.of(view.state.weights) if view.state else None
        if weights is not None:
            found[view.name] = weights
    return found


def lineage_lines(views: list[EngineView]) -> list[Line]:
    """Who pushed what to these engines, newest first."""
    served = _served(views)
    return [_line(push, served) for push in lineage_of([view.engine.pk for view in views])]


def _group_row(group: Group, lines: list[Line]) -> dict[str, object]:
    names = {view.name for view in group.views}
    last = next((line for line in lines if line.to in names and line.word == "succeeded"), None)
    stored = [Weights.of(view.state.weights) for view in group.views if view.state]
    desired = next((one for one in stored if one is not None), None)
    wanted = {one.is_same_as for one in stored if one is not None}
    return {
        "model": group.model,
        "differs": len(wanted) if len(wanted) > 1 else 0,
        "size": size(desired.bytes) if desired and desired.bytes else "",
        "desired": desired,
        "split": [
            wv(version, "" if (version, checksum) in wanted else "old", count)
            for (version, checksum), count in group.split
        ],
        "condition": group_condition(group),
        "source": DASH if len(wanted) > 1 else source_of(desired),
        "last": last,
        "views": group.views,
        "num_ranks": group.num_ranks,
        "columns": range(max((len(view.ranks) for view in group.views), default=0)),
        "is_wide": any(len(view.ranks) > MATRIX_RANKS for view in group.views),
    }


@page
@require_safe
def weights(request: HttpRequest) -> HttpResponse:
    """Every model with its engines and ranks, and the lineage of all."""
    found = slice_of(request)
    views = found.views
    lines = lineage_lines(views)
    cells: Cells = {}
    for view in views:
        cells |= engine_matrix_cells(view)
    num_ranks = sum(len(view.ranks) for view in views)
    heard = sum(1 for view in views if view.online for rank in view.ranks if rank.online)
    return page_render(
        request,
        "weights.html",
        nav="weights",
        title="Weights",
        context={
            "groups": [_group_row(group, lines) for group in groups_of(views)],
            "unseen": [view for view in views if view.state is None],
            "lines": lines,
            "cells": cells,
            "num_ranks": num_ranks,
            "num_heard": heard,
            "slice": found,
            "topics": found.topic,
        },
    )


def _story(view: EngineView) -> SafeString | None:
    """What is odd and what to do; None when nothing is."""
    fenced = fenced_ranks(view)
    if view.state is None or not view.online:
        return None
    if fenced:
        names = ("Rank " if len(fenced) == 1 else "Ranks ") + ", ".join(
            str(rank.dp_rank) for rank in fenced
        )
        why = "; ".join(rank.note for rank in fenced if rank.note)
        return format_html(
            "<b>{} in quarantine:</b> it does not serve what the engine is to serve and gets no "
            "requests. {}The others carry the load. Nothing more happens by itself: repair brings "
            "it to {}.",
            names,
            f"The engine says: {why}. " if why else "",
            view.state.weights.version if view.state.weights else "the desired weights",
        )
    if view.state.needs_weights:
        return format_html(
            "<b>Nothing is served:</b> the memory of the weights is back, their contents are not. "
            "An update from disk, files or a trainer brings some."
        )
    if view.state.released:
        return format_html(
            "<b>Nothing is served:</b> {} was given back to the machine. Resume takes it again.",
            " and ".join(view.state.released),
        )
    return None


def engine_weights_cells(view: EngineView, now: datetime) -> Cells:
    """All live cells of one engine's page."""
    return {
        **rank_rows_cells(view, now),
        "w-cond": condition(view),
        "w-note": engine_note(view),
        "w-sub": _sub(view),
        "why-update": format_html("{}", words.why_no_change(view)),
        "why-repair": format_html("{}", words.why_no_change(view, is_repair=True)),
    }


def _sub(view: EngineView) -> SafeString:
    weights = Weights.of(view.state.weights) if view.state else None
    if view.state is None or weights is None:
        return DASH
    return format_html(
        "<span>{}, {} tensors, {} a rank</span><span>DP {}</span>"
        '<span>desired <span class="mono">{} {}</span></span>',
        view.state.model,
        f"{weights.num_tensors:,}" if weights.num_tensors else "–",
        size(weights.bytes) if weights.bytes else "–",
        len(view.ranks),
        weights.version,
        weights.checksum[:8],
    )


@page
@require_safe
def weights_engine(request: HttpRequest, name: str) -> HttpResponse:
    """One engine's ranks, what can be done, and its lineage."""
    view = engine_get(name=name, rights=rights_in(request))
    previous = previous_of(view)
    return page_render(
        request,
        "weights_engine.html",
        nav="weights",
        title=f"Weights of {view.name}",
        context={
            "view": view,
            "cells": engine_weights_cells(view, db_now()),
            "story": _story(view),
            "odd": odd_ranks(view),
            "is_odd": bool(odd_ranks(view) or fenced_ranks(view)),
            "previous": previous,
            "lines": lineage_lines([view]),
            "topics": f"engine:{view.name}",
        },
    )

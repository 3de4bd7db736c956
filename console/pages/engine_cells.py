"""The live cells of the engine page and of a fleet row: element id → HTML.

The template prints them at first, the live socket sends them again when they change.
"""

from __future__ import annotations

from datetime import datetime

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from console.models import Job
from console.pages import words
from console.pages.kinds import kind_words
from console.pages.tier_cells import engine_tiers_cell, tiers_cell
from console.pages.weights_cells import rank_version
from console.selectors.engines import EngineView
from console.selectors.weights import Served, served_by
from console.templatetags.q_tags import (
    DASH,
    Cells,
    age,
    icon,
    places,
    ranks,
    short,
    state,
    tile,
)
from engine.protocol import RankView

_NONE = mark_safe('<span class="faint">none</span>')
_NOT_KNOWN = mark_safe("not known")


def percent(share: float | None) -> SafeString:
    """`61 %`; `none` when no prompt came in the last minute."""
    return _NONE if share is None else format_html("{} %", f"{100 * share:.0f}")


def rank_cells(view: EngineView, rank: RankView, now: datetime) -> Cells:
    """One row of the rank table."""
    key = f"r{rank.dp_rank}"
    known = view.online and rank.online
    reported = words.heard_at(view)
    if reported is not None:
        reported = datetime.fromtimestamp(reported.timestamp() - rank.age_s, reported.tzinfo)
    return {
        f"{key}-st": state(words.rank_word(view, rank)),
        f"{key}-why": places(words.nonzero(rank.places)) if known else _NOT_KNOWN,
        f"{key}-run": format_html("{}", rank.running) if known else DASH,
        f"{key}-wait": format_html("{}", rank.waiting) if known else DASH,
        f"{key}-kv": tiers_cell(rank) if known else DASH,
        f"{key}-hit": percent(rank.hit_rate) if known else DASH,
        f"{key}-tps": format_html("{}", f"{rank.decode_tokens_per_s:.0f}") if known else DASH,
        f"{key}-w": rank_version(view, rank),
        f"{key}-age": age(reported, now),
    }


def _sum(view: EngineView) -> SafeString:
    if not view.ranks:
        return mark_safe("no rank has reported yet")
    running = sum(rank.running for rank in view.ranks)
    waiting = sum(rank.waiting for rank in view.ranks)
    held = view.state.held_requests if view.state else 0
    head = words.counted(words.rank_words(view))
    if not view.online:
        return format_html("{}", head)
    return format_html("{}; {} running, {} waiting, {} held", head, running, waiting, held)


def engine_state_words(view: EngineView) -> SafeString:
    """Paused, released, without weights: what keeps an engine from serving, in a sentence."""
    state_now = view.state
    if state_now is None or not view.online:
        return SafeString("")
    said = []
    if state_now.needs_weights:
        said.append("its memory is back, its weights are not: nothing is served until an update")
    if state_now.released:
        said.append(f"it gave back {' and '.join(state_now.released)}: nothing is served")
    if state_now.paused:
        said.append(f"it is paused ({state_now.paused}): no rank steps, new requests are held")
    fenced = [str(rank.dp_rank) for rank in view.ranks if rank.condition == "fenced"]
    if fenced:
        noun = "rank" if len(fenced) == 1 else "ranks"
        said.append(f"{noun} {', '.join(fenced)} in quarantine: no requests until repaired")
    if not said:
        return SafeString("")
    is_bad = bool(state_now.needs_weights or state_now.released or fenced)
    return format_html(
        '<div class="next{}" data-key="{}">{}<p>{}.</p></div>',
        " n-bad" if is_bad else "",
        "; ".join(said),
        icon("lock" if is_bad else "player-pause"),
        "; ".join(said).capitalize(),
    )


def _sub(view: EngineView) -> SafeString:
    if view.state is None:
        return mark_safe("<span>never seen</span>")
    return format_html(
        "<span>{}</span><span>DP {}</span><span>engine {}</span>"
        '<span>{} epoch <span class="mono">{}</span></span>',
        view.state.model,
        len(view.ranks),
        view.state.version,
        "" if view.online else "last",
        view.state.epoch,
    )


def engine_cells(view: EngineView, now: datetime) -> Cells:
    """Everything on the engine page that changes while it is open, but for the pending panel."""
    cells: Cells = {
        "eng-st": state(words.engine_word(view)),
        "eng-sub": _sub(view),
        "ranks-sum": _sum(view),
        "eng-cond": engine_state_words(view),
        "why-flush": format_html("{}", words.why_no_change(view)),
        "why-try": format_html("{}", "" if view.online else words.why_no_change(view)),
    }
    for rank in view.ranks:
        cells |= rank_cells(view, rank, now)
    return cells


def _last_job(job: Job | None, now: datetime) -> SafeString:
    if job is None:
        return mark_safe('<span class="faint">none yet</span>')
    word = words.job_word(job)
    return format_html(
        '<a class="main fw-medium" href="{}"><span class="st">{}<span>{} '
        '<span class="mono">{}</span></span></span></a>'
        '<span class="sub">{} · {}, {}</span>',
        reverse("job", args=[job.pk]),
        tile(word, word),
        kind_words(job.kind).name,
        short(job.pk),
        word,
        job.requested_by_name,
        age(job.created_at, now),
    )


def _weights(view: EngineView) -> SafeString:
    """Each version that a rank of the engine serves, with its checksum; the odd ones marked."""
    seen: dict[Served, RankView] = {}
    for rank in view.ranks:
        seen.setdefault(served_by(rank), rank)
    found = format_html_join(
        " ", "<span>{}</span>", ((rank_version(view, r),) for r in seen.values())
    )
    return format_html('<span class="hs">{}</span>', found) if seen else DASH


def fleet_row_cells(view: EngineView, job: Job | None, now: datetime) -> Cells:
    """One row of the fleet."""
    key = f"e-{view.name}"
    known = view.online and view.state is not None
    hits = [rank.hit_rate for rank in view.ranks if rank.hit_rate is not None]
    model = f"{view.state.model} · DP {len(view.ranks)}" if view.state else "never seen"
    return {
        f"{key}-st": state(words.engine_word(view)),
        f"{key}-model": format_html("{}", model),
        f"{key}-ranks": ranks(words.rank_words(view)) if view.ranks else DASH,
        f"{key}-run": format_html("{}", sum(r.running for r in view.ranks)) if known else DASH,
        f"{key}-wait": format_html("{}", sum(r.waiting for r in view.ranks)) if known else DASH,
        f"{key}-kv": engine_tiers_cell(view) if known else DASH,
        f"{key}-hit": percent(sum(hits) / len(hits) if hits else None) if known else DASH,
        f"{key}-w": _weights(view),
        f"{key}-age": age(words.heard_at(view), now),
        f"{key}-last": _last_job(job, now),
    }

"""The live cells of the backend pages: an engine's row, its ranks, what is odd, the last errors."""

from __future__ import annotations

from datetime import datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from console.pages import words
from console.pages.backend_story import errors_cell, failed_at, odd_cell, rank_names
from console.pages.engine_cells import percent
from console.selectors.engines import EngineView
from console.selectors.storage import (
    Attached,
    attached_of,
    is_as_desired,
    odd_ranks,
    policies_of,
    totals_of,
)
from console.templatetags.q_tags import DASH, Cells, age, at, duration, icon, ranks, size, state
from engine.protocol import Breaker, RankStorage, RankView

NONE = mark_safe('<span class="faint">none</span>')
_STALE = mark_safe('<span class="is-stale px-2">not known</span>')
BREAKERS = {
    Breaker.CLOSED: "closed",
    Breaker.OPEN: "open",
    Breaker.HALF_OPEN: "half-open",
    Breaker.STALLED: "stalled",
}


def breaker_word(view: EngineView, rank: RankView) -> str:
    """The fixed word of one rank's breaker; `none` without a backend."""
    if not view.online or not rank.online:
        return "unreachable"
    return "none" if rank.storage is None else BREAKERS[rank.storage.breaker]


def megabytes(bytes_per_s: float) -> SafeString:
    """`1,910`, of MB/s."""
    return format_html("{}", f"{bytes_per_s / 1e6:,.0f}")


def pages(count: int) -> str:
    """`1 page`, `37 pages`."""
    return f"{count:,} page{'' if count == 1 else 's'}"


def _tag(tone: str, glyph: str, text: str) -> SafeString:
    return format_html('<span class="qtag qtag-{}">{}{}</span>', tone, icon(glyph), text)


def named_cell(attached: Attached | None) -> SafeString:
    """The backend's name; experimental ones say so."""
    if attached is None:
        return mark_safe("none")
    return format_html(
        "{}{}",
        attached.backend,
        mark_safe(' <span class="qtag">experimental</span>') if attached.is_experimental else "",
    )


def drift(view: EngineView) -> SafeString:
    """Which ranks do not have what they should."""
    if not view.online:
        return _STALE
    found = odd_ranks(view)
    return _tag("warn", "git-compare", rank_names(found)) if found else NONE


def newest_error(view: EngineView) -> tuple[RankView, RankStorage] | None:
    """The rank whose backend failed last."""
    told = [
        (rank, rank.storage)
        for rank in view.ranks
        if rank.storage is not None and rank.storage.last_error
    ]
    return min(told, key=lambda pair: pair[1].last_error_age_s or 0.0, default=None)


def _last_error(view: EngineView, now: datetime) -> SafeString:
    if not view.online:
        return format_html("last seen {}", at(words.heard_at(view)))
    found = newest_error(view)
    if found is None:
        return NONE
    rank, storage = found
    return format_html("{} ago, rank {}", age(failed_at(view, storage), now), rank.dp_rank)


def backend_row_cells(view: EngineView, now: datetime) -> Cells:
    """One engine's row in the list of backends."""
    key, attached, totals = f"b-{view.name}", attached_of(view), totals_of(view)
    told = totals if view.online else None
    off = DASH if not view.online else mark_safe('<span class="faint">–</span>')
    state_words = [breaker_word(view, rank) for rank in view.ranks]
    return {
        f"{key}-be": named_cell(attached) if view.state else DASH,
        f"{key}-br": mark_safe('<span class="faint">nothing attached</span>')
        if attached is None and state_words and set(state_words) <= {"none"}
        else ranks(state_words)
        if view.ranks
        else DASH,
        f"{key}-cfg": _short_id(view, attached),
        f"{key}-hit": percent(told.hit_rate) if told else off,
        f"{key}-rd": megabytes(told.read_bytes_per_s) if told else off,
        f"{key}-wr": megabytes(told.write_bytes_per_s) if told else off,
        f"{key}-sto": _stored(told.stored_bytes, told.stored_pages) if told else off,
        f"{key}-drift": drift(view),
        f"{key}-err": _last_error(view, now),
    }


def _short_id(view: EngineView, attached: Attached | None) -> SafeString:
    if view.state is None:
        return DASH
    return NONE if attached is None else format_html("{}", attached.short_id or "–")


def _stored(num_bytes: int | None, num_pages: int | None) -> SafeString:
    """Pages, and below them the room that they take: a store may set aside more than they fill."""
    taken = "" if num_bytes is None else size(num_bytes)
    if num_pages is None:
        return format_html("{}", taken) if taken else DASH
    sub = format_html('<span class="sub nowrap">{}</span>', taken) if taken else ""
    return format_html('<span class="nowrap">{}</span>{}', pages(num_pages), sub)


def _sub(storage: RankStorage) -> str:
    if storage.breaker is Breaker.OPEN and storage.retry_in_s is not None:
        return f"next try in {duration(storage.retry_in_s)}"
    return ""


def _errors(view: EngineView, rank: RankView, now: datetime) -> SafeString:
    storage = rank.storage
    if storage is None or not storage.errors:
        return NONE
    return format_html(
        '<a href="#err-{}">{} ago, {} in all</a>',
        rank.dp_rank,
        age(failed_at(view, storage), now),
        f"{storage.errors:,}",
    )


def _config(rank: RankView, desired: Attached | None) -> SafeString:
    hash_words = rank.storage.config_hash[:8] if rank.storage else ""
    word = "drift" if rank.storage is None or rank.storage.is_open else "not open"
    tag = (
        SafeString("")
        if is_as_desired(rank, desired)
        else format_html(
            ' <a class="qtag qtag-warn" href="#h-odd">{}{}</a>', icon("git-compare"), word
        )
    )
    return format_html('<span class="mono">{}</span>{}', hash_words or "none", tag)


def rank_backend_cells(view: EngineView, rank: RankView, now: datetime) -> Cells:
    """One row of an engine's ranks."""
    key, storage = f"r{rank.dp_rank}", rank.storage
    known = storage if view.online and rank.online else None
    return {
        f"{key}-br": state(breaker_word(view, rank)),
        f"{key}-sub": format_html("{}", _sub(known) if known else ""),
        f"{key}-be": format_html("{}", storage.backend if storage else "none"),
        f"{key}-cfg": _config(rank, attached_of(view)),
        f"{key}-l3": percent(known.hit_rate) if known else DASH,
        f"{key}-rd": megabytes(known.read_bytes_per_s) if known else DASH,
        f"{key}-wr": megabytes(known.write_bytes_per_s) if known else DASH,
        f"{key}-sto": _stored(known.used_bytes, known.stored_pages) if known else DASH,
        f"{key}-drop": format_html("{}", f"{known.dropped_pages:,}") if known else DASH,
        f"{key}-err": _errors(view, rank, now) if known else DASH,
    }


def condition(view: EngineView) -> SafeString:
    """What is odd about an engine's backend; a faint word when nothing is."""
    if view.state is None:
        return mark_safe('<span class="faint">never seen</span>')
    if not view.online:
        return mark_safe('<span class="is-stale px-2">last known</span>')
    found = odd_ranks(view)
    if found:
        is_shut = all(rank.storage is not None and not rank.storage.is_open for rank in found)
        noun = "rank drifts" if len(found) == 1 else "ranks drift"
        if is_shut:
            noun = "rank cannot open it" if len(found) == 1 else "ranks cannot open it"
        return _tag("warn", "git-compare", f"{len(found)} {noun}")
    bad = [w for w in (breaker_word(view, r) for r in view.ranks) if w not in ("closed", "none")]
    if bad:
        return _tag("warn", "plug-connected-x", words.counted(bad))
    return SafeString("")


def breakers_sum(view: EngineView) -> SafeString:
    """`6 closed, 1 half-open, 1 open`."""
    if not view.ranks:
        return mark_safe("no rank has reported yet")
    return format_html("{}", words.counted(breaker_word(view, rank) for rank in view.ranks))


def desired_cell(view: EngineView) -> SafeString:
    """What every rank is to have, and how many do; then the policies."""
    if view.state is None:
        return DASH
    attached, total = attached_of(view), len(view.ranks)
    good = total - len(odd_ranks(view))
    name = f"{attached.backend} · {attached.short_id}" if attached else "nothing attached"
    policies = policies_of(view.state.policies)
    if not view.online:
        count: SafeString = _STALE
    elif good == total:
        count = format_html('<span class="faint">{} of {} as desired</span>', good, total)
    else:
        count = _tag("warn", "git-compare", f"{good} of {total} as desired")
    return format_html(
        'Desired <span class="mono">{}</span>{}<span class="mono">{}</span>',
        name,
        count,
        " · ".join(policies.values()),
    )


def backend_cells(view: EngineView, now: datetime) -> Cells:
    """Everything that changes on an engine's backend page."""
    cells: Cells = {
        "be-cond": condition(view),
        "be-sum": breakers_sum(view),
        "be-want": desired_cell(view),
        "be-odd": odd_cell(view),
        "why-change": format_html("{}", words.why_no_change(view)),
    }
    if attached_of(view) is not None:
        cells["be-errs"] = errors_cell(view)
    for rank in view.ranks:
        cells |= rank_backend_cells(view, rank, now)
    return cells

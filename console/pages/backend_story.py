"""What went wrong with an engine's backend, in words: the last errors, and ranks that differ."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from console.selectors.engines import EngineView
from console.selectors.storage import attached_of, odd_ranks
from console.templatetags.q_tags import at, icon
from engine.protocol import Breaker, RankStorage, RankView

_EFFECTS = {
    Breaker.OPEN: "Reads are misses, writes are dropped and counted. Serving goes on from L1, L2.",
    Breaker.HALF_OPEN: "It tries one page at a time; good ones close it again.",
    Breaker.STALLED: "A call of it does not come back. Nothing more is asked of it.",
}


def failed_at(view: EngineView, storage: RankStorage) -> datetime | None:
    """When a backend failed last, on the console's clock."""
    if view.observed_at is None or storage.last_error_age_s is None:
        return None
    return view.observed_at - timedelta(seconds=storage.last_error_age_s)


def rank_names(found: list[RankView]) -> str:
    """`ranks 0, 3`, at most six of them by number."""
    names = ", ".join(str(rank.dp_rank) for rank in found[:6])
    more = f" and {len(found) - 6} more" if len(found) > 6 else ""
    return ("rank " if len(found) == 1 else "ranks ") + names + more


def errors_cell(view: EngineView) -> SafeString:
    """The last error of each rank that has one, as the backend said it, and what it leads to."""
    told = [(rank.dp_rank, rank.storage) for rank in view.ranks if rank.storage is not None]
    found = [(rank, storage) for rank, storage in told if storage.last_error]
    if not found:
        return mark_safe('<p class="muted">No rank’s backend has failed since it was attached.</p>')
    return format_html_join(
        "",
        '<div id="err-{0}"><div class="hs"><a class="fw6" href="#rank-{0}">Rank {0}</a>'
        '<span class="small faint">{1}, {2} in all</span></div><pre class="raw mt-1" tabindex="0" '
        'role="region" aria-label="Error of rank {0}">{3}</pre>'
        '<p class="small muted mt-1">{4}</p></div>',
        (
            (
                rank,
                at(failed_at(view, storage)),
                f"{storage.errors:,}",
                storage.last_error,
                _consequence(storage),
            )
            for rank, storage in found
        ),
    )


def _consequence(storage: RankStorage) -> str:
    parts = [_EFFECTS.get(storage.breaker, "The breaker is closed: it is used as before.")]
    if storage.dropped_pages:
        parts.append(f"{_pages(storage.dropped_pages)} not written.")
    if storage.corrupt_pages:
        parts.append(f"{_pages(storage.corrupt_pages)} not what had been written: misses.")
    return " ".join(parts)


def _pages(count: int) -> str:
    return "1 page was" if count == 1 else f"{count:,} pages were"


def odd_cell(view: EngineView) -> SafeString:
    """Which ranks differ, in what, and what to do; nothing while all are as desired."""
    desired, found = attached_of(view), odd_ranks(view)
    if not found or not view.online:
        return SafeString("")
    want = f"{desired.backend} {desired.short_id}" if desired else "nothing"
    lines = format_html_join(
        "",
        "<li><b>Rank {}</b> has {}</li>",
        ((rank.dp_rank, _has(rank)) for rank in found[:16]),
    )
    return format_html(
        '<div class="next n-bad" data-key="{}">{}<div><p id="h-odd"><b>{} not as desired.</b> The '
        "engine is to have {}. A rank without it serves from L1 and L2, so it costs hits, never an "
        'answer. {}</p><ul class="mb-0">{}</ul></div></div>',
        "|".join(f"{rank.dp_rank}:{_has(rank)}" for rank in found),
        icon("git-compare"),
        rank_names(found).capitalize(),
        want,
        _what_helps(found),
        lines,
    )


def _what_helps(found: list[RankView]) -> str:
    shut = [rank for rank in found if rank.storage is not None and not rank.storage.is_open]
    tries = "It tries again by itself, every 30 s at most: mend what its last error names."
    return tries if len(shut) == len(found) else "Repair brings it there."


def _has(rank: RankView) -> str:
    storage = rank.storage
    if storage is not None and not storage.is_open:
        return f"{storage.backend} {storage.config_id[:8]}, but could not open it"
    if storage is None:
        why = rank.note or rank.condition
        return f"nothing attached{f': {why}' if why else ''}"
    own = f"{storage.backend} {storage.config_id[:8]}"
    return f"{own}, with settings that hash to {storage.config_hash[:8]}"

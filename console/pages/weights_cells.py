"""The live cells of the weights pages: the matrix, the conditions, the mixed banner."""

from __future__ import annotations

from datetime import datetime

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from console.access import Rights
from console.pages import words
from console.selectors.engines import EngineView
from console.selectors.weights import Group, Mixed, Weights, is_as_desired, mixed_fleet, served_by
from console.templatetags.q_tags import DASH, Cells, at, icon, short, size, state, wv
from engine.protocol import RankView

MATRIX_RANKS = 16  # more ranks are told on the engine's own page


def _tag(tone: str, glyph: str, text: str) -> SafeString:
    return format_html('<span class="qtag qtag-{}">{}{}</span>', tone, icon(glyph), text)


def odd_ranks(view: EngineView) -> list[RankView]:
    """Ranks that do not serve what their engine is to serve."""
    if view.state is None:
        return []
    return [rank for rank in view.ranks if not is_as_desired(rank, view.state)]


def fenced_ranks(view: EngineView) -> list[RankView]:
    """Ranks that get no requests until they are repaired."""
    return [rank for rank in view.ranks if rank.condition == "fenced"]


def version_kind(view: EngineView, rank: RankView) -> str:
    """How a version is drawn: plain, old, fenced, or stale."""
    if not view.online or not rank.online:
        return "stale"
    if view.state is not None and not is_as_desired(rank, view.state):
        return "fenced" if not rank.proven else "old"
    return ""


def rank_version(view: EngineView, rank: RankView) -> SafeString:
    """A rank's version and the first digits of its checksum."""
    return format_html(
        '{}<span class="sub mono">{}</span>',
        wv(rank.weight_version, version_kind(view, rank)),
        rank.weight_checksum[:8] or "not told",
    )


def condition(view: EngineView) -> SafeString:
    """What is odd about an engine's weights; a faint word when nothing is."""
    if view.state is None:
        return mark_safe('<span class="faint">never seen</span>')
    if not view.online:
        return mark_safe('<span class="is-stale px-2">last known</span>')
    fenced = fenced_ranks(view)
    if fenced:
        noun = "rank" if len(fenced) == 1 else "ranks"
        return _tag("bad", "lock", f"{len(fenced)} {noun} in quarantine")
    if view.state.needs_weights:
        return _tag("bad", "lock", "needs weights")
    if view.state.released:
        return _tag("warn", "download", f"released: {', '.join(view.state.released)}")
    if len({served_by(rank) for rank in view.ranks}) > 1:
        return _tag("warn", "versions", "mixed")
    if view.state.paused:
        return _tag("warn", "player-pause", f"paused ({view.state.paused})")
    return mark_safe('<span class="faint">one version</span>')


def group_condition(group: Group) -> SafeString:
    """The worst of its engines; that they differ; or that there is one version."""
    fenced = sum(len(fenced_ranks(view)) for view in group.views if view.online)
    if fenced:
        return _tag("bad", "lock", f"{fenced} quarantined")
    if group.is_mixed:
        counts = ", ".join(str(count) for _, count in group.split)
        return _tag("warn", "versions", f"mixed, {counts}")
    if len(group.views) == 1:
        return condition(group.views[0])
    stale = sum(len(view.ranks) for view in group.views if not view.online)
    if stale:
        return format_html('<span class="is-stale px-2">{} stale</span>', stale)
    return mark_safe('<span class="faint">one version</span>')


def engine_note(view: EngineView) -> SafeString:
    """What goes on with an engine's weights."""
    pending = view.pending
    if not view.online:
        return format_html("no news since {}", at(words.heard_at(view)))
    if pending is not None and pending.view.weights is not None:
        job = (
            format_html(
                '<a href="{}">job {}</a>',
                reverse("job", args=[pending.job_id]),
                short(pending.job_id),
            )
            if pending.job_id
            else "an operation from outside"
        )
        return format_html("{} brings {}", job, pending.view.weights.version)
    odd = odd_ranks(view)
    if odd:
        return format_html("{} of {} as desired", len(view.ranks) - len(odd), len(view.ranks))
    return mark_safe("all as desired")


def engine_matrix_cells(view: EngineView) -> Cells:
    """One row of the matrix."""
    key = f"w-{view.name}"
    cells: Cells = {
        f"{key}-note": engine_note(view),
        f"{key}-cond": condition(view),
        f"{key}-want": _served(view),
    }
    for rank in view.ranks:
        cells[f"{key}-r{rank.dp_rank}"] = rank_version(view, rank)
    return cells


def _served(view: EngineView) -> SafeString:
    """What the engine is to serve."""
    weights = Weights.of(view.state.weights) if view.state else None
    if weights is None:
        return DASH
    return format_html(
        '<span class="mono">{}</span><span class="sub mono">{}</span>',
        weights.version,
        weights.checksum[:8] or "not told",
    )


def source_of(weights: Weights | None) -> SafeString:
    """How weights came: the word, and the folder, files or group."""
    if weights is None:
        return DASH
    return format_html(
        '{}<span class="sub mono wrapany">{}</span>', weights.source_words or DASH, weights.label
    )


def rank_rows_cells(view: EngineView, now: datetime) -> Cells:
    """The table of one engine's ranks."""
    cells: Cells = {}
    desired = Weights.of(view.state.weights) if view.state else None
    for rank in view.ranks:
        key = f"r{rank.dp_rank}"
        same = view.state is not None and is_as_desired(rank, view.state)
        told = rank.weight_checksum or "not told"
        cells |= {
            f"{key}-st": state(words.rank_word(view, rank)),
            f"{key}-wv": wv(rank.weight_version, version_kind(view, rank)),
            f"{key}-sum": format_html('<span title="{}">{}</span>', told, told[:8]),
            f"{key}-eq": _equals(same, rank, desired),
            f"{key}-note": format_html("{}", _rank_note(rank)),
        }
    return cells


def _equals(same: bool, rank: RankView, desired: Weights | None) -> SafeString:
    if desired is None:
        return mark_safe("not known")
    if same:
        return format_html(
            '<span class="hs flex-nowrap gap-1 c-ok">{}<span class="c-ink">yes</span></span>',
            icon("check"),
        )
    return format_html(
        '<span class="hs flex-nowrap gap-1 c-bad">{}<span class="fw6">no, {}</span></span>',
        icon("x"),
        rank.weight_checksum[:8] or rank.weight_version,
    )


def _rank_note(rank: RankView) -> str:
    """Why it gets no requests, in the engine's words; what it stages."""
    if rank.staging is not None and rank.staging.what != "ready":
        done, total = size(rank.staging.done_bytes), size(rank.staging.total_bytes)
        return f"{rank.staging.what}: {done} of {total}"
    if rank.condition or rank.note:
        return ": ".join(part for part in (rank.condition, rank.note) if part)
    return ""


def mixed_banner(rights: Rights) -> SafeString:
    """The banner of a mixed fleet; nothing while each model is served with one set of weights."""
    mixed = mixed_fleet(rights=rights)
    if not mixed:
        return SafeString("")
    first = mixed[0]
    more = f" So do {len(mixed) - 1} more models." if len(mixed) > 1 else ""
    return format_html(
        '<div class="banner b-warn" role="status" data-key="{}">{}<div><b>{} is served with {} '
        "versions: {}.</b> The same prompt may answer differently by rank.{}</div>"
        '<a class="btn btn-q btn-sm" href="{}">Open Weights</a></div>',
        mixed_key(mixed),
        icon("versions"),
        first.model,
        len(first.split),
        format_html_join(
            ", ",
            "{} {} on {}",
            ((n, "rank" if n == 1 else "ranks", version) for version, n in first.split),
        ),
        more,
        reverse("weights"),
    )


def mixed_key(mixed: list[Mixed]) -> str:
    """Changes when the banner's words do."""
    return "|".join(f"{one.model}:{one.split}" for one in mixed)

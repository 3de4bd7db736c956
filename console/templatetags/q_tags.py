"""Template tags: icon, state, tile, ranks, bars, places, times. None makes inline style.

`STATES` is the only table of state words: a word looks the same everywhere. The same functions make
the live fragments, so the first paint and an update never differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache

from django import template
from django.template import Context
from django.templatetags.static import static
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

register = template.Library()

Cells = dict[str, SafeString]  # element id → inner HTML
DASH = mark_safe("–")  # not known; 0 is zero, and "none" is an answer

# word → (tone, pattern, icon)
STATES: Mapping[str, tuple[str, str, str]] = {
    "queued": ("off", "line", "clock"),
    "blocked": ("warn", "line", "lock"),
    "waiting for idle": ("act", "line", "hourglass-empty"),
    "preparing": ("act", "line", "progress"),
    "committing": ("act", "solid", "progress"),
    "verifying": ("act", "line", "fingerprint"),
    "compensating": ("warn", "line", "arrow-back-up"),
    "succeeded": ("ok", "solid", "check"),
    "partial": ("bad", "half", "exclamation-mark"),
    "failed": ("bad", "solid", "x"),
    "expired": ("off", "solid", "clock-x"),
    "paused": ("warn", "solid", "player-pause"),
    "released": ("warn", "line", "download"),
    "needs weights": ("bad", "line", "lock"),
    "cancelling": ("off", "dash", "ban"),
    "cancelled": ("off", "line", "ban"),
    "unknown": ("unk", "hatch", "question-mark"),
    "interrupted": ("unk", "half", "exclamation-mark"),
    # tokens and people
    "active": ("ok", "line", "check"),
    "expires soon": ("warn", "line", "clock-x"),
    "revoked": ("off", "line", "ban"),
    "disabled": ("off", "line", "ban"),
    # ranks and engines
    "idle": ("ok", "line", "minus"),
    "busy": ("act", "soft", "activity"),
    "parked": ("ok", "solid", "player-pause"),
    "fenced": ("bad", "line", "lock"),
    "unreachable": ("unk", "hatch", "wifi-off"),
    "compensated": ("warn", "solid", "arrow-back-up"),
    "not started": ("off", "dash", ""),
    "waiting": ("act", "line", "hourglass-empty"),
    "ok": ("ok", "solid", "check"),
    # a rank's storage backend: the breaker's words are the engineer's, closed is good
    "closed": ("ok", "line", "plug-connected"),
    "half-open": ("warn", "half", "refresh"),
    "open": ("bad", "solid", "plug-connected-x"),
    "stalled": ("bad", "line", "clock-x"),
    "none": ("off", "dash", ""),
    # requests that were answered with a refusal
    "refused": ("off", "line", "ban"),
    "denied": ("bad", "line", "ban"),
    # an audit entry that records a wish or a step, not an end
    "recorded": ("off", "line", "check"),
    # the chain of the audit log
    "verified": ("ok", "solid", "shield-check"),
    "broken": ("bad", "solid", "shield-x"),
    "not checked": ("off", "dash", ""),
}


@register.simple_tag
@cache
def icon(name: str) -> SafeString:
    """One icon of the sprite, decorative."""
    return format_html(
        '<svg class="i" aria-hidden="true"><use href="{}#{}"></use></svg>',
        static("img/icons.svg"),
        name,
    )


@register.simple_tag
@lru_cache(maxsize=1024)
def tile(word: str, title: str = "") -> SafeString:
    """Pattern and icon of a state word; the word itself stands beside it."""
    tone, pattern, glyph = STATES[word]
    return format_html(
        '<span class="tile t-{} p-{}"{}>{}</span>',
        tone,
        pattern,
        format_html(' title="{}"', title) if title else "",
        icon(glyph) if glyph else "",
    )


@register.simple_tag
@lru_cache(maxsize=1024)
def state(word: str, id: str = "", big: bool = False) -> SafeString:  # noqa: A002
    """Tile and word."""
    return format_html(
        '<span class="st{}"{}>{}<span>{}</span></span>',
        " st-lg" if big else "",
        format_html(' id="{}"', id) if id else "",
        tile(word),
        word,
    )


@register.simple_tag
def ranks(words: Sequence[str]) -> SafeString:
    """Squares for a row of a list: one image to a screen reader; another page holds the table."""
    counts = ", ".join(f"{n} {word}" for word, n in Counter(words).items())
    noun = "rank" if len(words) == 1 else "ranks"
    squares = format_html_join(
        "", "{}", ((tile(word, f"rank {n}: {word}"),) for n, word in enumerate(words))
    )
    return format_html(
        '<span class="ranks" role="img" aria-label="{} {}: {}">{}</span>',
        len(words),
        noun,
        counts or "none known",
        squares,
    )


@register.simple_tag
def cellbar(percent: float, text: str = "", warn: float = 85) -> SafeString:
    """A bar of `percent` with words beside it."""
    return format_html(
        '<div class="cellbar"><svg class="bar" aria-hidden="true"><rect class="{}" width="{}%"'
        ' height="100%"></rect></svg><span>{}</span></div>',
        "f-warn" if percent >= warn else "f",
        f"{percent:.1f}",
        text or f"{percent:.0f} %",
    )


@register.filter
def size(num_bytes: float | None) -> str:
    """`32.8 GB`, `271 MB`, `512 B`: decimal, three digits."""
    if num_bytes is None:
        return "–"
    value, unit = float(num_bytes), "B"
    for bigger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, bigger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.3g} {unit}"


def size_of(done: float, total: float) -> str:
    """`28.9 of 32.8 GB`."""
    whole = size(total)
    if done >= total:
        return whole
    unit = whole.rpartition(" ")[2]
    scale = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
    share = done / scale
    if 0 < share < 0.095:
        return f"{size(done)} of {whole}"
    return f"{share:.0f} of {whole}" if share >= 99.95 else f"{share:.1f} of {whole}"


@register.simple_tag
def progress(done: float | None, total: float, text: str = "") -> SafeString:
    """A phase of one rank: accent while it runs, bluish green when whole, words beside it."""
    share = min(100.0, 100 * (done or 0) / total) if total else 0.0
    words_beside = text or (
        mark_safe('<i class="todo fst-normal">not started</i>')
        if done is None
        else size_of(done, total)
    )
    return format_html(
        '<div class="pgr"><svg class="bar" aria-hidden="true"><rect class="{}" width="{}%"'
        ' height="100%"></rect></svg><span>{}</span></div>',
        "f-done" if share >= 100 else "f",
        f"{share:.1f}",
        words_beside,
    )


@register.simple_tag
def wv(version: str, kind: str = "", count: int | None = None) -> SafeString:
    """A version as a rank serves it: plain when as desired, else old, fenced or stale."""
    glyph = {"old": "versions", "fenced": "lock", "stale": "wifi-off"}.get(kind, "")
    return format_html(
        '<span class="wv{}">{}<span>{}</span>{}</span>',
        f" wv-{kind}" if kind else "",
        icon(glyph) if glyph else "",
        version,
        format_html("<b>{}</b>", count) if count is not None else "",
    )


@register.simple_tag
def places(pairs: Sequence[tuple[str, int]]) -> SafeString:
    """The engine's own words and counts for what is not idle."""
    if not pairs:
        return mark_safe('<span class="faint">nothing held</span>')
    return format_html(
        '<span class="places">{}</span>',
        format_html_join("", '<span class="place"><span>{}</span><b>{}</b></span>', pairs),
    )


@register.simple_tag
def at(moment: datetime | None, cls: str = "") -> SafeString:
    """A time of day; the zone follows the toggle in the header, full UTC on hover."""
    if moment is None:
        return mark_safe('<span class="faint">–</span>')
    utc = moment.astimezone(UTC)
    return format_html(
        '<time class="{}" datetime="{}" title="{} UTC">{}</time>',
        cls,
        utc.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        utc.strftime("%Y-%m-%d %H:%M:%S"),
        utc.strftime("%H:%M:%S"),
    )


@register.simple_tag
def age(moment: datetime | None, now: datetime) -> SafeString:
    """How old something is; the browser goes on counting from `moment`, on the server's clock."""
    if moment is None:
        return mark_safe('<span class="faint">never</span>')
    utc = moment.astimezone(UTC)
    return format_html(
        '<span data-at="{}">{}</span>',
        utc.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        duration(max(0.0, (now - utc).total_seconds())),
    )


@register.simple_tag(takes_context=True)
def cell(context: Context, key: str) -> SafeString:
    """The HTML of the live cell `key`: what its fragments will bring later."""
    found: SafeString = context["cells"][key]
    return found


@register.filter
def duration(seconds: float | None) -> str:
    """`0.4 s`, `12 s`, `1:12` from a minute up, `2:03:10` from an hour up."""
    if seconds is None:
        return "–"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    if minutes < 24 * 60:
        return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
    return f"{minutes // 1440} d {minutes // 60 % 24} h"


@register.filter
def fine(seconds: float | None) -> str:
    """A short time, as measured: `24 ms`, `0.84 s`, then as `duration`."""
    if seconds is None or seconds >= 9.95:
        return duration(seconds)
    if seconds >= 0.0995:
        return f"{seconds:.2f} s"
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.0005 else "under 1 ms"


@register.filter
def mmss(seconds: float | None) -> str:
    """`0:48`; `1:02:03` from an hour up."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(max(0, int(seconds)), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


@register.filter
def key(prefix: str, name: object) -> str:
    """`prefix` and `name` as one element id."""
    return f"{prefix}{name}"


@register.filter
def short(job_id: object) -> str:
    """The last eight digits of a job's id: what people read out. The first ones are its time."""
    return str(job_id)[-8:]


@register.filter
def thousands(number: int) -> str:
    """`12,345`."""
    return f"{number:,}"


@register.filter
def words(text: str) -> list[str]:
    """A text as its words, for a loop."""
    return text.split()

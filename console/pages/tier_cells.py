"""How full the tiers of the KV cache are: device (L1), host (L2), storage (L3)."""

from __future__ import annotations

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from console.selectors.engines import EngineView
from console.selectors.storage import attached_of, totals_of
from console.templatetags.q_tags import DASH, cellbar, size
from engine.protocol import HostUsage, KVUsage, RankStorage, RankView


def kv_cell(kv: KVUsage | None) -> SafeString:
    """Pages that hold something now, against the pool; then the exact counts."""
    if kv is None or not kv.total_pages:
        return DASH
    filled = kv.used_pages + kv.evictable_pages
    return _pages(filled, kv.used_pages, kv.evictable_pages, kv.total_pages)


def _host_cell(host: HostUsage) -> SafeString:
    used = host.locked_pages + host.held_pages
    return _pages(used + host.evictable_pages, used, host.evictable_pages, host.total_pages)


def _pages(filled: int, used: int, evictable: int, total: int) -> SafeString:
    return format_html(
        '{}<span class="sub"><b>{}</b> used · <b>{}</b> evictable · <b>{}</b> total</span>',
        cellbar(100 * filled / total if total else 0),
        f"{used:,}",
        f"{evictable:,}",
        f"{total:,}",
    )


def _hits(rate: float | None) -> str:
    return "" if rate is None else f", {100 * rate:.0f} % hits"


def _storage_cell(storage: RankStorage) -> SafeString:
    if storage.stored_pages is not None:
        stored = f", {storage.stored_pages:,} pages"
    else:
        stored = "" if storage.used_bytes is None else f", {size(storage.used_bytes)}"
    return format_html(
        '<span class="small">{}{}{}{}</span>',
        storage.backend,
        _hits(storage.hit_rate),
        stored,
        "" if storage.breaker == "closed" else f", breaker {storage.breaker.replace('_', '-')}",
    )


def tiers_cell(rank: RankView) -> SafeString:
    """One rank's tiers; only the device's pages where there is no other tier."""
    if rank.host is None and rank.storage is None:
        return kv_cell(rank.kv)
    lines = [("L1", kv_cell(rank.kv))]
    if rank.host is not None:
        lines.append(("L2", _host_cell(rank.host)))
    if rank.storage is not None:
        lines.append(("L3", _storage_cell(rank.storage)))
    return format_html(
        '<div class="tiers">{}</div>',
        format_html_join("", '<div class="t"><b>{}</b><div>{}</div></div>', lines),
    )


def engine_tiers_cell(view: EngineView) -> SafeString:
    """The tiers of all ranks of an engine, for a row of the fleet."""
    kv = [rank.kv for rank in view.ranks if rank.kv is not None]
    total = sum(one.total_pages for one in kv)
    if not total:
        return DASH
    filled = sum(one.used_pages + one.evictable_pages for one in kv)
    below = []
    host = [rank.host for rank in view.ranks if rank.host is not None]
    host_total = sum(one.total_pages for one in host)
    if host_total:
        share = 100 * (host_total - sum(one.free_pages for one in host)) / host_total
        below.append(f"L2 {share:.0f} %")
    attached, totals = attached_of(view), totals_of(view)
    if attached is not None:
        below.append(f"L3 {attached.backend}{_hits(totals.hit_rate if totals else None)}")
    sub = format_html('<span class="sub nowrap">{}</span>', " · ".join(below)) if below else ""
    return format_html("{}{}", cellbar(100 * filled / total), sub)

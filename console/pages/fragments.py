"""Registers who renders the live fragments of each kind of topic; called once by asgi.py.

A fragment is (element id, inner HTML), made by the same cells that the page was first painted with.
"""

from __future__ import annotations

from django.utils.safestring import SafeString

from console import fragments
from console.access import Rights
from console.clock import db_now, monotonic_s
from console.fragments import Shown
from console.notify import fleet_page_of
from console.pages.backend_cells import backend_cells, backend_row_cells
from console.pages.engines import engine_page_cells
from console.pages.fleet import fleet_cells
from console.pages.job_cells import job_list_cells
from console.pages.jobs import job_page_cells
from console.pages.parts_banner import parts_banner
from console.pages.pending_list import pending_cells
from console.pages.shell import nav_count
from console.pages.weights import engine_weights_cells
from console.pages.weights_cells import engine_matrix_cells, mixed_banner
from console.selectors.jobs import jobs_open_count
from console.templatetags.q_tags import Cells

Fragments = list[tuple[str, str]]

# It is made of all engines, and sent with every topic, also with a job that changes none of them.
MIXED_KEPT_S = 1.0
_mixed: dict[Rights, tuple[float, SafeString]] = {}


def _mixed_banner(rights: Rights, kept_s: float) -> SafeString:
    """The banner of a mixed fleet, so old at most."""
    now = monotonic_s()
    made_at, banner = _mixed.get(rights, (-MIXED_KEPT_S, SafeString("")))
    if now - made_at >= kept_s:
        banner = mixed_banner(rights)
        for old in [one for one, (at, _) in _mixed.items() if now - at >= MIXED_KEPT_S]:
            del _mixed[old]
        _mixed[rights] = now, banner
    return banner


def _sent(cells: Cells, shown: Shown, mixed_kept_s: float = MIXED_KEPT_S) -> Fragments:
    return [(key, str(html)) for key, html in cells.items()] + [
        ("nav-n", str(nav_count(jobs_open_count(rights=shown.rights)))),
        ("parts", str(parts_banner(shown.parts))),
        ("mixed", str(_mixed_banner(shown.rights, mixed_kept_s))),
    ]


def _fleet(topic: str, shown: Shown) -> Fragments:
    (views, total), now = shown.subject, db_now()
    _, q = fleet_page_of(topic)
    cells = fleet_cells(views, shown.rights, is_part=bool(q) or len(views) < total)
    for view in views:
        cells |= engine_matrix_cells(view) | backend_row_cells(view, now)
    return _sent(cells, shown, mixed_kept_s=0)


def _engine(topic: str, shown: Shown) -> Fragments:
    view, now = shown.subject, db_now()
    # On the weights page of an engine `-note` and such are its own, on its backend's page `-br`;
    # the rest has the same words.
    own = {**engine_weights_cells(view, now), **backend_cells(view, now)}
    return _sent({**own, **engine_page_cells(view, shown.rights)}, shown)


def _job(topic: str, shown: Shown) -> Fragments:
    return _sent(job_page_cells(shown.subject, shown.rights), shown)


def _jobs(topic: str, shown: Shown) -> Fragments:
    return _sent(job_list_cells(shown.subject.items, slot="jobs_rows"), shown)


def _pending(topic: str, shown: Shown) -> Fragments:
    return _sent(pending_cells(shown.subject, shown.rights), shown)


def register_all() -> None:
    """Called once, before the first socket."""
    fragments.register("fleet", _fleet)
    fragments.register("engine", _engine)
    fragments.register("job", _job)
    fragments.register("jobs", _jobs)
    fragments.register("pending", _pending)

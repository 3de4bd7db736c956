"""The rows of a plan that only storage backends have: probe, tiers, what becomes of the store."""

from __future__ import annotations

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from console.choices import JobKind
from console.pages.backend_cells import pages
from console.pages.job_storage import named
from console.params import AttachParams, DetachParams, PoliciesParams
from console.selectors.plan_storage import keeps_attached
from console.selectors.plans import Plan
from console.selectors.storage import policies_of, totals_of
from console.templatetags.q_tags import size

Row = tuple[str, SafeString]

_PROBE = mark_safe(
    "on every rank: opened, one page written, read, compared and deleted, off the scheduler "
    "thread, in 30 s at most; the deadline counts from its end. If one rank cannot, nothing "
    "changes on any"
)
_FAILS = {
    JobKind.ATTACH_STORAGE_BACKEND: mark_safe(
        "Before the commit: all stay as they are. In it: the others are put back; one that cannot "
        "be is named with its reason, and the job ends <b>partial</b>"
    ),
    JobKind.DETACH_STORAGE_BACKEND: mark_safe(
        "The others are put back; one that cannot be is named, and the job ends <b>partial</b>"
    ),
    JobKind.CLEAR_STORAGE_BACKEND: mark_safe(
        "Job ends <b>partial</b> and names it; what it stored may be there still"
    ),
}


def _stored(plan: Plan) -> str:
    totals = totals_of(plan.view)
    if totals is None:
        return ""
    if totals.stored_pages is not None:
        return pages(totals.stored_pages)
    return size(totals.stored_bytes) if totals.stored_bytes is not None else ""


def _attach_l3(plan: Plan) -> SafeString:
    now, params = plan.attached, plan.params
    assert isinstance(params, AttachParams)
    if now is None:
        return format_html(
            "nothing is attached now; pages go to <b>{}</b> as they are written", params.backend
        )
    if keeps_attached(params, now):
        return format_html("<b>{}</b> is attached already; it stays as it is", named(now))
    return format_html(
        "<b>what is stored in {}{} is no longer read</b>; it stays there until someone clears it. "
        "{} is hit once it holds what is asked for",
        now.backend,
        f", {stored}," if (stored := _stored(plan)) else "",
        params.backend,
    )


def _deletes(plan: Plan) -> SafeString:
    """What a clear deletes, said so that nobody takes a detach for one, or one for a detach."""
    if plan.attached is None:
        return mark_safe("<b>nothing</b>: nothing is attached")
    return format_html(
        "<b>{} that this engine stored in {}</b>, for good. Pages of other engines and models in "
        "the same store stay. Detach would have deleted nothing",
        _stored(plan) or "everything",
        named(plan.attached),
    )


def storage_rows(plan: Plan) -> list[Row]:
    """The rows between the pause and the requests at risk; none for other kinds."""
    match plan.kind:
        case JobKind.ATTACH_STORAGE_BACKEND:
            return [
                ("Probe", _PROBE),
                ("L1, L2", mark_safe("<b>stay</b>: no weights change")),
                ("L3", _attach_l3(plan)),
            ]
        case JobKind.DETACH_STORAGE_BACKEND:
            return [("Deletes", mark_safe("<b>nothing</b>")), ("L3", _detach_l3(plan))]
        case JobKind.CLEAR_STORAGE_BACKEND:
            return [("Deletes", _deletes(plan)), ("L1, L2", mark_safe("<b>stay</b>"))]
        case JobKind.SET_CACHE_POLICIES:
            return [("Policies", _policies(plan))]
    return []


def _detach_l3(plan: Plan) -> SafeString:
    if plan.attached is None:
        return mark_safe("nothing is attached, so nothing changes")
    assert isinstance(plan.params, DetachParams)
    how = (
        "Transfers in flight are given up; requests that wait for pages go on without them."
        if plan.params.force
        else "Transfers in flight are finished first."
    )
    return format_html(
        "<b>what is stored in {} stays{}</b>, and is hit again once that is attached again. {} To "
        "delete it, clear it while it is attached",
        named(plan.attached),
        f": {stored}" if (stored := _stored(plan)) else "",
        how,
    )


def _policies(plan: Plan) -> SafeString:
    assert isinstance(plan.params, PoliciesParams)
    now = policies_of(plan.view.state.policies) if plan.view.state else {}
    asked = {
        "write_policy": plan.params.write_policy,
        "prefetch_policy": plan.params.prefetch_policy,
    }
    parts = [
        f"{now.get(name, 'not known')} → {word}"
        for name, word in asked.items()
        if word and word != now.get(name)
    ]
    if not parts:
        return mark_safe("as they are: nothing changes")
    return format_html('<span class="mono">{}</span>', ", ".join(parts))


def storage_fails(kind: JobKind) -> SafeString | None:
    """What a rank that fails leads to; None for other kinds."""
    return _FAILS.get(kind)

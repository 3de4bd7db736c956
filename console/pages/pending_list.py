"""Every operation that has not ended, nearest deadline first: what it waits for, who asked."""

from __future__ import annotations

from datetime import datetime

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.views.decorators.http import require_safe

from console.access import Rights
from console.choices import JobState, Mode
from console.clock import db_now
from console.models import Job
from console.pages import words
from console.pages.kinds import job_name, kind_words
from console.pages.pending import EXTEND_BY_S, steering_denied
from console.pages.shell import page, page_render
from console.requests import rights_in
from console.selectors.engines import engine_list
from console.selectors.jobs import job_waits, jobs_pending
from console.templatetags.q_tags import DASH, Cells, at, mmss, places, short, state

ACTING = frozenset({"preparing", "waiting for idle", "committing", "verifying", "compensating"})


def key_of(job: Job) -> str:
    """The row's element id."""
    return f"p-{job.pk}"


def _end_of(job: Job) -> datetime | None:
    return job.deadline_at or job.dispatch_by


def _left(job: Job, now: datetime) -> SafeString:
    end_at = _end_of(job)
    if end_at is None:
        return DASH
    left_s = (end_at - now).total_seconds()
    if left_s < 0:
        return format_html("{} over", mmss(-left_s))
    return format_html("{}", mmss(left_s + 0.99))


def _until(job: Job) -> SafeString:
    end_at = _end_of(job)
    if end_at is None:
        return mark_safe("its time has not begun")
    verb = "was" if job.state == JobState.RECONCILING else "at" if job.deadline_at else "sent by"
    return format_html("{} {}", verb, at(end_at))


def _why(job: Job) -> SafeString:
    word = words.job_word(job)
    if word == "unknown":
        return mark_safe('<span class="is-stale px-2">not known</span>')
    if word == "blocked":
        return format_html("another operation, {}", short(job.blocked_by) if job.blocked_by else "")
    counts: dict[str, int] = {}
    for row in job.ranks.all():
        for name, count in words.nonzero(row.places):
            counts[name] = counts.get(name, 0) + count
    if counts:
        return places(list(counts.items()))
    return mark_safe('<span class="faint">not waiting for idle</span>')


def _then(job: Job) -> str:
    """What happens by itself at the deadline."""
    word, done = words.job_word(job), kind_words(job.kind).done
    if word == "unknown":
        return "nothing: the engine’s journal is asked until it answers"
    if word == "blocked":
        return "its time begins when the other has ended"
    if word in ("committing", "verifying", "compensating"):
        return "decided: the deadline no longer applies"
    if word == "cancelling":
        return "ends as the engine says"
    if not job_waits(job) or job.mode == Mode.IF_IDLE:
        return "expires if it was not sent by then"
    return f"expires; no rank is {done}, all serve again"


def pending_row_cells(job: Job, now: datetime) -> Cells:
    """What changes in one row."""
    key = key_of(job)
    return {
        f"{key}-left": _left(job, now),
        f"{key}-until": _until(job),
        f"{key}-st": state(words.job_word(job)),
        f"{key}-why": _why(job),
        f"{key}-then": format_html("{}", _then(job)),
    }


def pending_cells(jobs: list[Job], rights: Rights) -> Cells:
    """All live cells of the page, and the rows themselves for jobs that are new."""
    now = db_now()
    cells: Cells = {}
    for job in jobs:
        cells |= pending_row_cells(job, now)
    rows = [
        {
            "job": job,
            "key": key_of(job),
            "name": job_name(job),
            "mode": job.mode if job_waits(job) else "",
            "can_extend": job_waits(job) and job.mode != Mode.IF_IDLE and job.deadline_at,
            "denied": steering_denied(job, rights),
            "end": _end_of(job),
        }
        for job in jobs
    ]
    cells["pending_rows"] = SafeString(
        render_to_string(
            "components/pending_rows.html", {"rows": rows, "cells": cells, "by_s": EXTEND_BY_S}
        )
    )
    return cells | _strip(jobs, now, rights)


def _strip(jobs: list[Job], now: datetime, rights: Rights) -> Cells:
    by_word: dict[str, list[Job]] = {}
    for job in jobs:
        by_word.setdefault(words.job_word(job), []).append(job)
    unknown, blocked = by_word.get("unknown", []), by_word.get("blocked", [])
    acting = [job for job in jobs if words.job_word(job) in ACTING]
    timed = [job for job in jobs if job not in unknown and _end_of(job) is not None]
    held = sum(view.state.held_requests for view in engine_list(rights=rights) if view.state)
    first = timed[0] if timed else None
    return {
        "pc-next": _condition(
            "Next deadline",
            _left(first, now) if first else DASH,
            format_html("job {}", short(first.pk)) if first else mark_safe("nothing waits"),
        ),
        "pc-over": _condition("Unknown", format_html("{}", len(unknown)), _named(unknown)),
        "pc-act": _condition("Acting", format_html("{}", len(acting)), _named(acting)),
        "pc-block": _condition("Blocked", format_html("{}", len(blocked)), _named(blocked)),
        "pc-held": _condition(
            "Requests held", format_html("{}", held), mark_safe("on all engines")
        ),
    }


def _named(jobs: list[Job]) -> SafeString:
    names = ", ".join(short(job.pk) for job in jobs[:3]) + (", …" if len(jobs) > 3 else "")
    return format_html("{}", f"job {names}" if names else "none")


def _condition(label: str, value: SafeString, note: SafeString) -> SafeString:
    return format_html(
        '<span class="lab">{}</span><div class="val">{}</div><div class="note">{}</div>',
        label,
        value,
        note,
    )


@page
@require_safe
def pending(request: HttpRequest) -> HttpResponse:
    """The whole list; a fleet has few open operations, one exclusive one an engine."""
    rights = rights_in(request)
    jobs = jobs_pending(rights=rights)
    return page_render(
        request,
        "pending.html",
        nav="pending",
        title="Pending",
        context={
            "jobs": jobs,
            "num_engines": len({job.engine_id for job in jobs}),
            "cells": pending_cells(jobs, rights),
            "conditions": ("pc-next", "pc-over", "pc-act", "pc-block", "pc-held"),
            "topics": "pending",
        },
    )

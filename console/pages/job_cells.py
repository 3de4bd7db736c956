"""The live cells of the job page and of a row of the list of jobs: element id → HTML."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from uuid import UUID

from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from console.access import Rights
from console.choices import STAGED_KINDS, WEIGHT_UPDATES, JobKind, RankState
from console.models import AuditEntry, Job, JobRankResult
from console.pages import words
from console.pages.again import retry_link
from console.pages.audit_words import entry_sentence
from console.pages.job_steps import steps_of
from console.pages.job_storage import storage_cells
from console.pages.job_story import next_of
from console.pages.kept import Kept
from console.pages.kinds import job_name, kind_words
from console.pages.pending import panel_of_job, panel_render
from console.pages.weights_panel import weights_panel_of, weights_panel_render
from console.pages.weights_ranks import weight_rank_cells
from console.selectors.engines import EngineView
from console.selectors.payloads import is_final
from console.templatetags.q_tags import DASH, Cells, at, duration, icon, places, ranks, state, tile

_STAGED: dict[str, str] = {
    **dict.fromkeys(STAGED_KINDS, "the end of staging"),
    JobKind.ATTACH_STORAGE_BACKEND: "when every rank has probed",
}


def rank_rows(job: Job, num_ranks: int) -> list[JobRankResult]:
    """The job's rank rows; before the engine has spoken, as many not started as it has ranks."""
    rows = list(job.ranks.all())
    if rows:
        return rows
    return [JobRankResult(job=job, dp_rank=rank, state="not_started") for rank in range(num_ranks)]


def score(job: Job, rows: list[JobRankResult]) -> list[tuple[str, int]]:
    """All eight counts, zeros too; their sum is the number of ranks."""
    counts = Counter(words.part_word(job, row) for row in rows)
    return [(word, counts[word]) for word in words.SCORE_WORDS]


def _score_cells(job: Job, rows: list[JobRankResult]) -> Cells:
    return {f"sc-{n}": _score_cell(*one) for n, one in enumerate(score(job, rows))}


@lru_cache(maxsize=1024)
def _score_cell(word: str, count: int) -> SafeString:
    return format_html(
        '<dt>{}{}</dt><dd class="{}">{}</dd>', tile(word), word, "" if count else "z0", count
    )


def _square(job: Job, row: JobRankResult) -> SafeString:
    word = words.part_word(job, row)
    why = [] if word == "unknown" else words.nonzero(row.places)
    return format_html(
        '<a href="#rank-{}">{}<span><b>Rank {}</b><span class="w">{}</span></span>{}</a>',
        row.dp_rank,
        tile(word),
        row.dp_rank,
        word,
        format_html(
            '<span class="why">{}</span>',
            format_html_join(mark_safe("<br>"), "{} {}", why),
        )
        if why
        else "",
    )


def _rank_cells(job: Job, row: JobRankResult) -> Cells:
    key = f"j{row.dp_rank}"
    # A rank that parked or flushed was fully idle; of others only what they reported is known.
    is_idle = row.state in (RankState.PARKED, RankState.SUCCEEDED)
    why = DASH if row.places is None and not is_idle else places(words.nonzero(row.places))
    last = words.rank_result_word(row.state)
    if words.part_word(job, row) != last:
        note = f"last heard: {last}" + (f", {row.message}" if row.message else "")
        why = DASH
    else:
        done = kind_words(job.kind).done
        note = row.message or (done if row.state == RankState.SUCCEEDED else "–")
        note = words.with_interrupted(row, note)
    return {
        f"sq-{row.dp_rank}": _square(job, row),
        f"{key}-st": state(words.part_word(job, row)),
        f"{key}-why": why,
        f"{key}-note": format_html("{}", note),
    }


def _steps(job: Job, now: datetime) -> SafeString:
    return format_html_join(
        "",
        '<li class="{}"{}>{}<span class="s-t">{}<span class="vh">: {}</span></span>'
        '<span class="s-x">{}</span>{}</li>',
        (
            (
                "todo" if step.is_todo else "",
                mark_safe(' aria-current="step"') if step.is_current else "",
                tile(step.word, step.word),
                step.title,
                step.word,
                step.took,
                format_html('<span class="s-d">{}</span>', step.detail) if step.detail else "",
            )
            for step in steps_of(job, now)
        ),
    )


def timeline(entries: list[AuditEntry]) -> SafeString:
    """The job's audit entries, newest first; the browser adds those it does not have."""
    return SafeString("".join(_event(entry) for entry in reversed(entries)))


_events: Kept[tuple[int, str], SafeString] = Kept(2000)


def _event(entry: AuditEntry) -> SafeString:
    key = (entry.seq, entry.hash)
    known = _events.get(key)
    if known is not None:
        return known
    made = format_html(
        '<li id="ev-{}">{}<a class="seq" href="{}">{}</a><span>{}</span></li>',
        entry.seq,
        at(entry.created_at),
        reverse("audit-entry", args=[entry.seq]),
        entry.seq,
        entry_sentence(entry),
    )
    _events.put(key, made)
    return made


def raw_reply(job: Job) -> str:
    """The engine's last word, as it was stored."""
    if job.reply is None:
        return "The engine has not answered yet."
    return json.dumps(job.reply, indent=2, ensure_ascii=False)


def _error(job: Job) -> SafeString:
    if not job.error:
        return mark_safe('<span class="faint">none</span>')
    code, message = job.error.get("code", ""), job.error.get("message", "")
    return format_html('<span class="mono">{}</span> {}', code, message)


def ranks_sum(job: Job, rows: list[JobRankResult]) -> SafeString:
    """`2 of 2 accounted for`."""
    known = len(job.ranks.all())
    if not rows:
        return mark_safe("not known until the engine answers")
    return format_html("{} of {} accounted for", known, len(rows))


def rank_section(job: Job, rows: list[JobRankResult], cells: Cells) -> SafeString:
    """Grid and table of those cells; replaced as a whole only when the number of ranks changes."""
    is_update = job.kind in WEIGHT_UPDATES
    return render_to_string(
        "components/weight_ranks.html" if is_update else "components/job_ranks.html",
        {"rows": rows, "cells": cells, "dense": len(rows) > 16},
    )


def job_cells(
    job: Job,
    entries: list[AuditEntry],
    view: Callable[[], EngineView],
    now: datetime,
    rights: Rights,
) -> Cells:
    """Everything on a job's page that changes while it is open. `view` reads its engine, of which
    little is told."""
    rows = rank_rows(job, 0) or rank_rows(job, len(view().ranks))
    panel = panel_of_job(job, now, rights)
    weights_panel = weights_panel_of(job, now, rights)
    following = next_of(job)
    cells_of = weight_rank_cells if job.kind in WEIGHT_UPDATES else _rank_cells
    rank_cells: Cells = {}
    for row in rows:
        rank_cells |= cells_of(job, row)
    cells: Cells = {
        "job-st": state(words.job_word(job), big=True),
        "pending-slot": weights_panel_render(weights_panel)
        if weights_panel is not None
        else panel_render(panel),
        "job-ranks": rank_section(job, rows, rank_cells),
        "ranks-sum": ranks_sum(job, rows),
        "next": format_html(
            '<div class="next {}">{}<p><b>{}</b> {}</p></div>',
            following.tone,
            icon(following.icon),
            following.lead,
            following.text,
        ),
        "tl": timeline(entries),
        "raw": format_html("{}", raw_reply(job)),
        "job-error": _error(job),
        "job-deadline": _deadline(job),
        "job-took": format_html("{}", took(job)),
        "job-mode": format_html("<code>{}</code>", job.mode),
        "steps": _steps(job, now),
        **storage_cells(job, view, rights),
        **_score_cells(job, rows),
        **rank_cells,
    }
    cells["undo"] = retry_link(job, rights) + cells["undo"]  # a job has one of them at most
    if weights_panel is not None:
        cells |= weights_panel.cells()
    elif panel is not None:
        cells |= panel.cells()
    return cells


def _deadline(job: Job) -> SafeString:
    if job.deadline_at is None and job.mode == "if_idle":
        return mark_safe("none: answered at once")
    if job.deadline_at is None:
        since = _STAGED.get(job.kind)
        return format_html("{} s from {}", f"{job.timeout_s:g}", since) if since else DASH
    asked_s = float(job.params.get("timeout_s", job.timeout_s))
    ends = "ended" if job.finished_at else "ends"
    return format_html("{} {} (asked: {} s)", ends, at(job.deadline_at), f"{asked_s:g}")


def took(job: Job) -> str:
    """From asked to ended."""
    if job.finished_at is None:
        return "–"
    return duration(max(0.0, (job.finished_at - job.created_at).total_seconds()))


def job_row_cells(job: Job) -> Cells:
    """One row of a list of jobs."""
    key = f"job-{job.pk}"
    rows = list(job.ranks.all())
    return {
        f"{key}-name": format_html("{}", job_name(job)),
        f"{key}-st": state(words.job_word(job)),
        f"{key}-ranks": ranks([words.part_word(job, row) for row in rows]) if rows else DASH,
        f"{key}-took": format_html("{}", took(job)),
    }


def job_list_cells(jobs: list[Job], *, slot: str) -> Cells:
    """The cells of all rows, and the rows themselves as `slot`, for those that are new."""
    cells: Cells = {}
    rows = []
    for job in jobs:
        row_cells, row = _row(job, slot)
        cells |= row_cells
        rows.append(row)
    cells[slot] = SafeString("".join(rows))
    return cells


# Of jobs that have ended: nothing in their rows will change any more.
_ended_rows: Kept[tuple[UUID, int, str], tuple[Cells, SafeString]] = Kept(1000)


def _row(job: Job, slot: str) -> tuple[Cells, SafeString]:
    """A job's cells and its row with them in it."""
    key = (job.pk, job.version, slot)
    known = _ended_rows.get(key)
    if known is not None:
        return known
    cells = job_row_cells(job)
    made = cells, render_to_string(f"components/{slot}.html", {"job": job, "cells": cells})
    if is_final(job):
        _ended_rows.put(key, made)
    return made

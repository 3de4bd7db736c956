"""The panel of a pending operation: its deadline, what is not idle, and what can be done.

Made from a job (job page) or from what the engine says (engine page). The panel's structure is
replaced only when `key` changes; its cells change by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.template.loader import render_to_string
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from console.access import KIND_ACTS, Rights
from console.choices import (
    HARSHER,
    STAGED_KINDS,
    TERMINAL_STATES,
    WAITING_KINDS,
    WEIGHT_UPDATES,
    JobKind,
    JobState,
    Mode,
)
from console.models import Job
from console.pages import words
from console.pages.kinds import kind_words
from console.selectors.access import labels_of_engine
from console.selectors.engines import EngineView
from console.selectors.jobs import job_waits
from console.templatetags.access_tags import denied_attrs
from console.templatetags.q_tags import Cells, at, mmss, places, short, state
from engine.protocol import Phase, RankState

EXTEND_BY_S = 60
STAGING_NOTE = (
    "Nothing is held yet: the engine serves its old weights. The deadline begins when staging "
    "ends; cancel is possible until the commit starts."
)
PROBING_NOTE = (
    "Nothing is held yet: each rank opens and probes the backend beside serving, in 30 s at most. "
    "{then}; cancel is possible until the commit starts."
)

FORCE_EFFECT = {
    Mode.DRAIN: "New requests are held; the running ones finish, then every rank is {done}.",
    Mode.ABORT: "The running requests end at once with finish_reason abort. Their clients see it.",
}


@dataclass(frozen=True)
class Panel:
    """What the panel shows. Without `job_id` it is a stranger's operation: look, do not touch."""

    job_id: UUID | None
    op_id: str
    kind: str
    word: str
    mode: Mode
    is_job_page: bool
    requested_by: str
    reason: str
    start_at: datetime | None
    end_at: datetime | None
    blockers: tuple[tuple[int, tuple[tuple[str, int], ...]], ...]
    note: str
    now: datetime
    waits: bool = True  # for idle, in a mode
    denied: SafeString = SafeString("")  # attributes of buttons that one may not use  # noqa: RUF009

    @property
    def key(self) -> str:
        """Changes when buttons or headings do."""
        parts = (
            *(self.op_id, self.mode, "dl" if self.end_at else "open"),
            *(self.is_sent, self.is_decided),
        )
        return ":".join(str(part) for part in parts)

    @property
    def is_sent(self) -> bool:
        """True once the engine has it, so that its ranks are waited for."""
        return self.word not in ("queued", "blocked")

    @property
    def is_decided(self) -> bool:
        """True once cancel and deadline no longer apply."""
        return self.word in ("committing", "verifying", "compensating")

    @property
    def name(self) -> str:
        """What is asked, as in a list."""
        return kind_words(self.kind).name

    @property
    def undo(self) -> str:
        """Whether it can be undone, for the dialog."""
        return "The update" if self.kind in WEIGHT_UPDATES else f"The {self.name.lower()}"

    @property
    def short(self) -> str:
        """The job's short id."""
        return short(self.op_id)

    @property
    def is_staging(self) -> bool:
        """Its ranks prepare beside serving."""
        return self.word == "preparing" and self.kind in STAGED_KINDS

    @property
    def heading(self) -> str:
        """Of the panel on the job's own page."""
        if self.end_at is not None:
            return "Deadline"
        if not self.is_sent:
            return "Not sent yet"
        is_to_come = self.is_staging and self.mode != Mode.IF_IDLE
        return "Deadline not begun" if is_to_come else "No deadline"

    @property
    def harsher(self) -> str:
        """The mode that Force takes; empty when there is none."""
        return str(HARSHER.get(self.mode, "")) if self.waits and not self.is_staging else ""

    @property
    def force_effect(self) -> str:
        """What Force does to requests."""
        text = FORCE_EFFECT.get(Mode(self.harsher), "") if self.harsher else ""
        return text.format(done=kind_words(self.kind).done)

    @property
    def total_s(self) -> float:
        """From start to deadline."""
        if self.start_at is None or self.end_at is None:
            return 0.0
        return max(0.0, (self.end_at - self.start_at).total_seconds())

    @property
    def elapsed_s(self) -> float:
        """Since the start, no more than the whole."""
        if self.start_at is None:
            return 0.0
        return min(self.total_s, max(0.0, (self.now - self.start_at).total_seconds()))

    @property
    def elapsed_percent(self) -> str:
        """For the deadline line."""
        return f"{100 * self.elapsed_s / self.total_s:.2f}" if self.total_s else "0"

    def cells(self) -> Cells:
        """What changes inside the panel."""
        cells: Cells = {"pend-note": format_html("{}", self.note)}
        if self.is_sent:
            cells["blockers"] = self._blockers()
        if not self.is_job_page:
            cells["pend-st"] = state(self.word)
        return cells | self._deadline_cells() if self.end_at else cells

    def _deadline_cells(self) -> Cells:
        left_s = self.total_s - self.elapsed_s
        return {
            "dl-elapsed": format_html("{}", mmss(self.elapsed_s)),
            "dl-total": format_html("{}", mmss(round(self.total_s))),
            "dl-at": at(self.end_at),
            "left-s": format_html("{}", mmss(left_s + 0.99)),
            "left-of": format_html("{}", mmss(round(self.total_s))),
        }

    def _blockers(self) -> SafeString:
        if not self.blockers:
            return mark_safe('<span class="muted">nothing</span>')
        return format_html_join(
            "",
            '<span class="hs"><a href="#rank-{0}">rank {0}</a>{1}</span>',
            ((rank, places(pairs)) for rank, pairs in self.blockers),
        )


def _note(word: str, kind: str, mode: Mode, awaited: list[int], *, waits: bool) -> str:
    if word == "blocked":
        return "Another operation holds this engine. This one starts when that one has ended."
    if word == "queued":
        return "Not sent yet: a worker takes it within a second. Nothing has changed."
    if word == "cancelling":
        return "Cancelling: the engine says how it ended."
    if word in ("committing", "verifying", "compensating"):
        return "Decided: cancel and deadline no longer apply."
    if word == "preparing" and kind in WEIGHT_UPDATES:
        return STAGING_NOTE
    if word == "preparing" and kind == JobKind.ATTACH_STORAGE_BACKEND:
        is_at_once = mode == Mode.IF_IDLE
        then = "One that is busy then is a refusal" if is_at_once else "Then the deadline begins"
        return PROBING_NOTE.format(then=then)
    if not waits:
        return "It waits for nothing: the engine carries it out at once."
    if not awaited:
        return "Every rank is idle; it follows at once."
    names = ", ".join(str(rank) for rank in awaited)
    noun = "rank" if len(awaited) == 1 else "ranks"
    if mode in (Mode.WAIT, Mode.IF_IDLE):
        return (
            f"New requests still reach {noun} {names}. Steady load can starve a wait; "
            "drain holds new requests instead."
        )
    return f"New requests are held. Awaited: {noun} {names}."


def steering_denied(job: Job | None, rights: Rights) -> SafeString:
    """Attributes of the buttons that steer a job; none when one may."""
    if job is None:
        return SafeString("")
    act = KIND_ACTS[JobKind(job.kind)]
    labels = labels_of_engine(job.engine)
    return denied_attrs(rights.why_denied(act, labels, whose=True, asked_by=job.requested_by_id))


def panel_of_job(job: Job, now: datetime, rights: Rights) -> Panel | None:
    """The panel on a job's own page; None once it has ended, or while its outcome is unknown."""
    if job.state in TERMINAL_STATES or job.state == JobState.RECONCILING:
        return None
    word = words.job_word(job)
    blockers = tuple(
        (row.dp_rank, tuple(words.nonzero(row.places)))
        for row in job.ranks.all()
        if words.nonzero(row.places)
    )
    start_at = job.dispatched_at or job.created_at
    if job.deadline_at is not None and job.dispatched_at is None:
        start_at = job.deadline_at - timedelta(seconds=job.timeout_s)
    return Panel(
        job_id=job.pk,
        op_id=str(job.pk),
        kind=job.kind,
        word=word,
        mode=Mode(job.mode),
        is_job_page=True,
        requested_by=job.requested_by_name,
        reason=job.reason,
        start_at=start_at,
        end_at=job.deadline_at,
        blockers=blockers,
        note=_note(
            *(word, job.kind, Mode(job.mode), [rank for rank, _ in blockers]),
            waits=job_waits(job),
        ),
        now=now,
        waits=job_waits(job),
        denied=steering_denied(job, rights),
    )


def panel_of_engine(
    view: EngineView, job: Job | None, now: datetime, rights: Rights
) -> Panel | None:
    """The panel on an engine's page; `job` is the console's job behind the operation, if any."""
    pending = view.pending
    if pending is None or not view.online:
        return None
    operation = pending.view
    mode = Mode(operation.mode)
    is_staging = operation.kind in STAGED_KINDS and operation.phase is Phase.PREPARING
    end_at = None if mode == Mode.IF_IDLE or is_staging else pending.deadline_at
    assert view.state is not None
    ran_s = view.state.clock_s - operation.started_clock_s
    observed_at = view.observed_at or now
    waits = job_waits(job) if job is not None else operation.kind in WAITING_KINDS
    return Panel(
        job_id=pending.job_id,
        op_id=operation.op_id,
        kind=str(operation.kind),
        word=str(operation.phase),
        mode=mode,
        is_job_page=False,
        requested_by=job.requested_by_name if job else operation.requested_by,
        reason=job.reason if job else "",
        start_at=observed_at - timedelta(seconds=max(0.0, ran_s)),
        end_at=end_at,
        blockers=tuple(
            (part.dp_rank, tuple(words.nonzero(part.places)))
            for part in operation.ranks
            if words.nonzero(part.places) and part.state is not RankState.PARKED
        ),
        note=_note(
            *(str(operation.phase), str(operation.kind), mode, operation.awaited_ranks),
            waits=waits,
        ),
        now=now,
        waits=waits,
        denied=steering_denied(job, rights),
    )


def panel_render(panel: Panel | None) -> SafeString:
    """The whole panel; nothing when no operation is pending."""
    if panel is None:
        return SafeString("")
    return render_to_string("components/pending.html", {"p": panel, "cells": panel.cells()})

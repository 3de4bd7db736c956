"""The panel of a weight job: bytes while files are brought and staged, the pause once it ended.

While the job waits for idle the panel of any pending operation stands here instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.template.loader import render_to_string
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from console.access import Rights
from console.choices import WEIGHT_UPDATES, JobPhase, JobState
from console.models import Job
from console.pages.job_ends import weights_before
from console.pages.job_steps import reply_number
from console.pages.pending import STAGING_NOTE, steering_denied
from console.pages.weights_ranks import left_s, rate_bytes_s, staged_of
from console.templatetags.q_tags import DASH, Cells, age, duration, fine, size, size_of


@dataclass(frozen=True)
class WeightsPanel:
    """`stage`: feeding, staging, verifying or ended; structure is replaced when it changes."""

    job: Job
    stage: str
    now: datetime
    denied: SafeString

    @property
    def key(self) -> str:
        """Changes when buttons or headings do."""
        return f"weights:{self.job.pk}:{self.stage}"

    @property
    def job_id(self) -> UUID:
        """For the cancel button."""
        return self.job.pk

    @property
    def is_ended(self) -> bool:
        """True once there is a measured pause to show."""
        return self.stage == "ended"

    @property
    def title(self) -> str:
        """What goes on."""
        return {
            "feeding": "Files go to the engine, which serves on",
            "staging": "Staging; the engine serves its old weights",
            "verifying": "Checking; the engine serves its old weights",
            "ended": "Pause, as measured",
        }[self.stage]

    @property
    def note(self) -> str:
        """What may still be done."""
        if self.stage == "feeding":
            return "Nothing is asked of the engine yet; cancel has no effect on it."
        return STAGING_NOTE

    @property
    def _bytes(self) -> tuple[int, int]:
        if self.stage == "feeding":
            return self.job.sent_bytes or 0, self.job.total_bytes or 0
        parts = [staged_of(row) for row in self.job.ranks.all()]
        if self.stage == "staging":
            done = sum(n if what == "stage" else total for what, n, total, _ in parts)
        else:
            done = sum(n for what, n, _, _ in parts if what in ("verify", "ready"))
        return done, sum(total for _, _, total, _ in parts)

    @property
    def percent(self) -> str:
        """Of the large bar."""
        done, total = self._bytes
        return f"{100 * done / total:.1f}" if total else "0"

    def cells(self) -> Cells:
        """What changes inside."""
        if self.is_ended:
            return self._ended_cells()
        done, total = self._bytes
        ranks = [row for row in self.job.ranks.all() if left_s(row) is not None]
        rates = [rate_bytes_s(row) or 0.0 for row in ranks]
        slowest = max(ranks, key=lambda row: left_s(row) or 0.0, default=None)
        left = left_s(slowest) if slowest is not None else None
        cells: Cells = {
            "all-bar": format_html(
                '<rect class="{}" width="{}%" height="100%"></rect>',
                "f-done" if total and done >= total else "f",
                self.percent,
            ),
            "all-x": format_html("{}", size_of(done, total)) if total else DASH,
            "all-rate": format_html("{} MB/s", f"{sum(rates) / 1e6:,.0f}") if rates else DASH,
            "all-left": DASH,
            "paused": mark_safe("<b>0.0 s</b><span>paused so far</span>"),
        }
        if slowest is not None and left is not None:
            cells["all-left"] = format_html(
                "{} (slowest: rank {})", duration(left), slowest.dp_rank
            )
        return cells

    def _ended_cells(self) -> Cells:
        pause_s = reply_number(self.job, "pause_s")
        lost = sum(row.interrupted for row in self.job.ranks.all())
        return {
            "paused": format_html(
                "<b>{}</b><span>paused; {}</span>",
                fine(pause_s),
                f"{lost} requests ended" if self.job.mode == "abort" else "0 requests lost",
            ),
            "pause-facts": self._facts(),
        }

    def _facts(self) -> SafeString:
        job = self.job
        staged_s, held = reply_number(job, "staged_s"), reply_number(job, "held_requests")
        effects = [row.effect_s for row in job.ranks.all() if row.effect_s is not None]
        total = self._bytes[1]
        before = weights_before(job)
        facts = [
            ("Held", "not known" if held is None else f"{held:.0f} requests, released in order"),
            ("Staged", "not known" if staged_s is None else fine(staged_s)),
            ("Bytes", size(total) if total else "not known"),
            ("Swap", f"{fine(max(effects))} on the slowest rank" if effects else "none"),
            ("Served before", f"{before.version} {before.checksum[:8]}" if before else "not known"),
        ]
        return format_html_join("", '<dt>{}</dt><dd class="num-l">{}</dd>', facts)


def weights_panel_of(job: Job, now: datetime, rights: Rights) -> WeightsPanel | None:
    """The panel, or None: while it waits, is unknown, or ended before it had any effect."""
    if job.kind not in WEIGHT_UPDATES:
        return None
    if job.state == JobState.CLAIMED and job.sent_bytes is not None:
        return WeightsPanel(job, "feeding", now, steering_denied(job, rights))
    if job.state == JobState.DISPATCHED and job.phase == JobPhase.PREPARING:
        whats = {staged_of(row)[0] for row in job.ranks.all()}
        is_checked = bool(whats) and whats <= {"verify", "ready"}
        return WeightsPanel(
            job, "verifying" if is_checked else "staging", now, steering_denied(job, rights)
        )
    if job.state in (JobState.SUCCEEDED, JobState.PARTIAL):
        return WeightsPanel(job, "ended", now, SafeString(""))
    return None


def weights_panel_render(panel: WeightsPanel) -> SafeString:
    """The whole panel."""
    return render_to_string(
        "components/weights_panel.html",
        {"p": panel, "cells": panel.cells(), "since": age(panel.job.dispatched_at, panel.now)},
    )

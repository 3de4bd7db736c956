"""The rank table of a weight job: what each rank has staged and checked, and how fast."""

from __future__ import annotations

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from console.choices import JobPhase, JobState, RankState
from console.models import Job, JobRankResult
from console.pages import words
from console.templatetags.q_tags import DASH, Cells, duration, fine, progress, state

_NOT_STARTED = mark_safe('<span class="faint nowrap">not started</span>')


def staged_of(row: JobRankResult) -> tuple[str, int, int, float]:
    """(what, done bytes, all bytes, seconds since its start) as the rank last told.

    A rank that has committed had staged and checked all of it, whatever it told last.
    """
    staging = row.staging or {}
    what, total = str(staging.get("what", "")), int(staging.get("total_bytes", 0))
    done = int(staging.get("done_bytes", 0))
    if row.state in (RankState.SUCCEEDED, RankState.COMPENSATED):
        what, done = "ready", total
    return what, done, total, float(staging.get("elapsed_s", 0.0))


def rate_bytes_s(row: JobRankResult) -> float | None:
    """Bytes a second while it stages, or over all of it once it is ready; None when not known."""
    told = row.staging or {}
    elapsed_s, what = float(told.get("elapsed_s", 0.0)), told.get("what")
    if elapsed_s <= 0 or what not in ("stage", "ready"):
        return None
    return int(told.get("done_bytes" if what == "stage" else "total_bytes", 0)) / elapsed_s


def left_s(row: JobRankResult) -> float | None:
    """Until it has staged everything, at its rate so far."""
    what, done, total, _ = staged_of(row)
    rate = rate_bytes_s(row)
    return (total - done) / rate if what == "stage" and rate else None


def rank_word(job: Job, row: JobRankResult) -> str:
    """The fixed word of the rank's part; while it stages or checks, that."""
    word = words.part_word(job, row)
    if job.state != JobState.DISPATCHED or job.phase != JobPhase.PREPARING:
        return word
    what = staged_of(row)[0]
    return {"stage": "preparing", "verify": "verifying", "ready": "waiting"}.get(what, word)


def _commit(job: Job, row: JobRankResult) -> SafeString:
    if row.state == RankState.SUCCEEDED:
        total = staged_of(row)[2]
        took = f"in {fine(row.effect_s)}" if row.effect_s is not None else "done"
        return progress(total or 1, total or 1, took)
    if row.state == RankState.COMPENSATED:
        return mark_safe("put back")
    if job.state == JobState.DISPATCHED and job.phase == JobPhase.COMMITTING:
        return mark_safe("committing")
    return _NOT_STARTED


def _note(job: Job, row: JobRankResult, word: str) -> str:
    if words.part_word(job, row) == "unknown" and row.state != RankState.UNKNOWN:
        return f"last heard: {words.rank_result_word(row.state)}"
    if row.message and job.finished_at is not None:
        return row.message
    seconds = left_s(row)
    if word == "preparing" and seconds is not None:
        return f"{duration(seconds)} left"
    if row.places is not None and words.nonzero(row.places) and job.finished_at is None:
        return " ".join(f"{name}={count}" for name, count in words.nonzero(row.places))
    return row.message or {"verifying": "staged; checked now", "waiting": "ready"}.get(word, "–")


def weight_rank_cells(job: Job, row: JobRankResult) -> Cells:
    """One row."""
    key, bars = f"j{row.dp_rank}", f"g{row.dp_rank}"
    what, done, total, _ = staged_of(row)
    word, rate = rank_word(job, row), rate_bytes_s(row)
    is_staged = what in ("verify", "ready")
    checked = {"verify": done, "ready": total}.get(what)
    note = _note(job, row, word)
    note = words.with_interrupted(row, note)
    return {
        f"{key}-st": state(word),
        f"{bars}-stage": progress(total if is_staged else done if what else None, total),
        f"{key}-rate": format_html("{}", f"{rate / 1e6:,.0f}") if rate is not None else DASH,
        f"{bars}-verify": progress(checked, total),
        f"{bars}-commit": _commit(job, row),
        f"{key}-note": format_html("{}", note),
    }

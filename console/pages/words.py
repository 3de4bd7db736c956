"""The word shown for an engine and for a rank, and why an engine cannot be changed now."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from console.choices import JobState, RankState
from console.models import Job, JobRankResult
from console.selectors.engines import EngineView
from console.templatetags.q_tags import STATES, mmss, short
from engine.protocol import PLACES, Places, RankView
from engine.protocol import RankState as EngineRankState

# In the order in which the box score prints them, zeros too.
SCORE_WORDS = (
    "ok",
    "failed",
    "unreachable",
    "waiting",
    "parked",
    "not started",
    "compensated",
    "unknown",
)


def job_word(job: Job) -> str:
    """The fixed word of a job."""
    if job.phase and job.phase in STATES:
        return str(job.phase)
    return str(job.state) if job.state in STATES else _OPEN_WORDS[JobState(job.state)]


FINAL_PARTS = frozenset({RankState.SUCCEEDED, RankState.FAILED, RankState.COMPENSATED})
_OPEN_WORDS = {
    JobState.ACCEPTED: "queued",
    JobState.CLAIMED: "queued",
    JobState.DISPATCHED: "waiting for idle",
    JobState.RECONCILING: "unknown",
}


def rank_result_word(state: str) -> str:
    """The fixed word of a rank's part in a job."""
    return str(RankState(state).label)


def part_word(job: Job, row: JobRankResult) -> str:
    """The fixed word of a rank's part; what was last heard is not known once the job is unknown."""
    if job.state == JobState.RECONCILING and row.state not in FINAL_PARTS:
        return "unknown"
    return rank_result_word(row.state)


def with_interrupted(row: JobRankResult, note: str) -> str:
    """The note of a rank, and how many requests it put back or ended for the job."""
    count = row.interrupted
    if not count:
        return note
    said = "1 request interrupted" if count == 1 else f"{count} requests interrupted"
    return said if note in ("", "–") else f"{note}; {said}"


def heard_at(view: EngineView) -> datetime | None:
    """When the engine was last heard; None when it never was."""
    return view.observed_at if view.state is not None else None


def nonzero(places: Places | dict[str, int] | None) -> list[tuple[str, int]]:
    """The places that hold something, in the protocol's order."""
    if places is None:
        return []
    read = places.get if isinstance(places, dict) else lambda name: getattr(places, name)
    return [(name, count) for name in PLACES if (count := read(name) or 0)]


def engine_word(view: EngineView) -> str:
    """The fixed word of an engine."""
    if not view.online or view.state is None:
        return "unreachable"
    if view.pending is not None:
        return str(view.pending.view.phase)
    if view.state.needs_weights:
        return "needs weights"
    if view.state.released:
        return "released"
    if view.state.paused:
        return "paused"
    return "idle" if view.state.idle else "busy"


def rank_word(view: EngineView, rank: RankView) -> str:
    """The fixed word of one rank of an engine."""
    if not view.online or not rank.online:
        return "unreachable"
    if not rank.proven:
        return "fenced"
    if view.pending is not None:
        for part in view.pending.view.ranks:
            if part.dp_rank == rank.dp_rank and part.state is EngineRankState.PARKED:
                return "parked"
    return "idle" if rank.idle else "busy"


def rank_words(view: EngineView) -> list[str]:
    """One word a rank."""
    return [rank_word(view, rank) for rank in view.ranks]


def counted(words: Iterable[str]) -> str:
    """`5 parked, 3 busy`."""
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def why_no_change(view: EngineView, *, is_repair: bool = False) -> str:
    """Why no new operation can begin on this engine now; empty when one can.

    A rank that is fenced stops all of them but the repair.
    """
    if not view.engine.enabled:
        return "Off: this engine is registered and switched off."
    if not view.online:
        return "Off: the engine does not answer, so its state is not known."
    pending = view.pending
    if pending is not None:
        who = f"Job {short(pending.job_id)}" if pending.job_id else "An operation from outside"
        return f"{who} holds this engine for up to {mmss(pending.view.remaining_s)} more."
    fenced = [rank.dp_rank for rank in view.ranks if rank.condition == "fenced"]
    if fenced and not is_repair:
        noun = "rank" if len(fenced) == 1 else "ranks"
        names = ", ".join(map(str, fenced))
        return f"Off: it needs every rank, and {noun} {names} cannot take part. Repair first."
    return ""

"""From what each rank ended as to the words of a result: outcome, per-rank states, one sentence.

Pure. A merged boolean never leaves this module; every rank is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from engine.ipc.messages import Word
from engine.protocol import Outcome, Phase, Places, RankResult, RankState

if TYPE_CHECKING:
    from engine.frontend.operation_state import Current, Seen


class RankEnd(StrEnum):
    """The state a participant ended in: the new one, the old one, or with its process."""

    NEW = "new"
    OLD = "old"
    DEAD = "dead"

    @classmethod
    def of(cls, word: Word) -> RankEnd:
        """What an answer proves."""
        new = (Word.COMMITTED, Word.UNDO_FAILED)
        return cls.NEW if word in new else cls.OLD


def judge(ends: Mapping[int, RankEnd], *, undone: bool) -> Outcome:
    """All new is success, none new is failure, anything between is partial."""
    values = set(ends.values())
    if RankEnd.NEW not in values:
        return Outcome.FAILED
    return Outcome.SUCCEEDED if values == {RankEnd.NEW} and not undone else Outcome.PARTIAL


def busy_places(current: Current, seen: Mapping[int, Seen], rank: int) -> Places | None:
    """The newest places of a rank, preferring those it gave as its reason to refuse."""
    refused = current.refused.get(rank)
    if refused is not None:
        return refused
    return seen[rank].places if rank in seen else None


def rank_results(
    current: Current, outcome: Outcome, ends: Mapping[int, RankEnd], seen: Mapping[int, Seen]
) -> list[RankResult]:
    """One result a rank, in rank order."""
    committed = current.phase in (Phase.COMMITTING, Phase.COMPENSATING)
    results = []
    for rank in sorted(current.incs):
        end = ends.get(rank, RankEnd.DEAD)
        message = current.messages.get(rank, "")
        places = None if committed else busy_places(current, seen, rank)
        if end is RankEnd.DEAD:
            state, message = RankState.UNREACHABLE, "the rank died; it restarts and converges"
        elif committed:
            state, message = _committed(current.phase, end, message)
        elif rank in current.refused or message:
            state = RankState.FAILED
        else:
            state = RankState.NOT_STARTED
            message = _why_not(current, outcome, rank)
        if places is not None and not places.is_idle and end is not RankEnd.DEAD:
            message = f"{message}: {places}"
        results.append(RankResult(dp_rank=rank, state=state, message=message, places=places))
    return results


def _committed(phase: Phase, end: RankEnd, message: str) -> tuple[RankState, str]:
    if phase is Phase.COMPENSATING:
        if end is RankEnd.OLD:
            return RankState.COMPENSATED, "taken back"
        return RankState.FAILED, f"holds the new state: the undo failed: {message}".rstrip(": ")
    if end is RankEnd.NEW:
        return RankState.SUCCEEDED, ""
    return RankState.FAILED, message or "not changed"


def _why_not(current: Current, outcome: Outcome, rank: int) -> str:
    if outcome is Outcome.EXPIRED:
        return "was idle, nothing changed" if rank in current.parked else "not idle in time"
    return "nothing changed"


def describe(
    current: Current, outcome: Outcome, ends: Mapping[int, RankEnd], seen: Mapping[int, Seen]
) -> str:
    """One sentence for people; busy places are counted where they are the reason."""
    busy = "; ".join(
        f"rank {rank} {places}"
        for rank in sorted(current.incs)
        if (places := busy_places(current, seen, rank)) is not None and not places.is_idle
    )
    match outcome:
        case Outcome.SUCCEEDED:
            return f"done on {len(ends)} of {len(ends)} ranks"
        case Outcome.EXPIRED:
            return "Timed out waiting for idle state." + (f" {busy}" if busy else "")
        case Outcome.CANCELLED:
            return "cancelled before any effect; nothing changed"
        case Outcome.PARTIAL:
            return "; ".join(f"rank {rank} {ends[rank]}" for rank in sorted(ends))
        case Outcome.FAILED:
            return _why_failed(current, ends, busy)


def _why_failed(current: Current, ends: Mapping[int, RankEnd], busy: str) -> str:
    if current.fault:
        died = RankEnd.DEAD in ends.values()
        return f"{current.fault}; {'no living rank' if died else 'nothing'} changed"
    if current.refused and busy:
        return f"not idle: {busy}"
    dead = [rank for rank in sorted(ends) if ends[rank] is RankEnd.DEAD]
    if dead:
        return f"rank {dead[0]} died; no living rank changed"
    named = [f"rank {rank}: {text}" for rank, text in sorted(current.messages.items())]
    return "; ".join(named) or "no rank changed"

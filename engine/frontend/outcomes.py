"""From what each rank ended as to the words of a result: outcome, per-rank states, one sentence.

Pure. A merged boolean never leaves this module; every rank is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from engine.frontend.operation_state import Verdict
from engine.ipc.messages import Said, ServingState, Word
from engine.protocol import (
    OperationResult,
    Outcome,
    Phase,
    Places,
    RankResult,
    RankState,
)

if TYPE_CHECKING:
    from engine.frontend.operation_state import Current, Seen
    from engine.frontend.rank_table import RankTable


NOT_IDLE = "not idle"  # a rank's reason to refuse, the only one that busy places explain


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


def note_answer(current: Current, said: Said) -> None:
    """Keep what a rank told along with its word; an answer that is sent again says the same."""
    rank = said.rank
    if said.message:
        current.messages[rank] = said.message
    if said.word is Word.REFUSED and said.message == NOT_IDLE:
        current.refused[rank] = said.places
    if said.word is Word.FAILED:
        current.failed.add(rank)
    if said.new is not None:
        current.prepared[rank] = said.new
    current.interrupted[rank] = max(said.interrupted, current.interrupted.get(rank, 0))
    if said.staging is not None:
        current.staging[rank] = said.staging
    if said.effect_s is not None:
        current.effect_s[rank] = said.effect_s


def agree(current: Current) -> Verdict:
    """Every rank would serve the same state, or none takes it."""
    states = current.prepared
    if len(set(map(repr, states.values()))) > 1:
        current.fault = "the ranks do not hold the same weights: " + ", ".join(
            f"rank {rank} {state.weights.checksum}" for rank, state in sorted(states.items())
        )
        return Verdict.FAILED
    current.new = next(iter(states.values()), current.new)
    return Verdict.READY


def repaired(ranks: RankTable, current: Current, rank: int, inc: int) -> RankEnd | None:
    """How a rank's repair ended; None while it goes on."""
    if not ranks.lives(rank, inc):
        return RankEnd.DEAD
    if ranks.is_proven(rank) and not ranks.is_fenced(rank):
        return RankEnd.NEW
    seen = ranks.seen.get(rank)
    if seen is not None and seen.view.converged_op == current.op and ranks.is_fenced(rank):
        current.messages[rank] = seen.view.note
        return RankEnd.OLD
    return None


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
            failed = rank in current.failed
            state, message = _committed(current.phase, end, message, failed=failed)
        elif rank in current.refused or message:
            state = RankState.FAILED
        else:
            state = RankState.NOT_STARTED
            message = _why_not(current, outcome, rank)
        if places is not None and not places.is_idle and end is not RankEnd.DEAD:
            message = f"{message}: {places}"
        results.append(
            RankResult(
                dp_rank=rank,
                state=state,
                message=message,
                places=places,
                interrupted=current.interrupted.get(rank, 0),
                staging=current.staging.get(rank),
                effect_s=current.effect_s.get(rank),
            )
        )
    return results


def _committed(phase: Phase, end: RankEnd, message: str, *, failed: bool) -> tuple[RankState, str]:
    if phase is Phase.COMPENSATING:
        if end is RankEnd.OLD and not failed:
            return RankState.COMPENSATED, "taken back"
        if end is RankEnd.OLD:
            return RankState.FAILED, message or "not changed"
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


def result_of(
    current: Current,
    outcome: Outcome,
    ends: Mapping[int, RankEnd],
    seen: Mapping[int, Seen],
    *,
    desired: ServingState,
    now: float,
    epoch: str,
    held: int,
) -> OperationResult:
    """The end of an operation, as it is recorded and told."""
    since, prepared = current.held_since, current.prepared_at
    may_change = (current.has_inverse or current.stages) and not current.changes_tiers
    return OperationResult(
        op_id=current.op_id,
        kind=current.operation.kind,
        mode=current.mode,
        outcome=outcome,
        message=describe(current, outcome, ends, seen),
        ranks=rank_results(current, outcome, ends, seen),
        started_clock_s=current.started_at,
        finished_clock_s=now,
        epoch=epoch,
        weights=desired.weights if may_change else None,
        weights_before=current.old.weights if may_change else None,
        storage=desired.storage_backend if current.changes_tiers else None,
        storage_before=current.old.storage_backend if current.changes_tiers else None,
        policies=desired.policies if current.changes_tiers else None,
        policies_before=current.old.policies if current.changes_tiers else None,
        interrupted=sum(current.interrupted.values()),
        held_requests=held,
        pause_s=None if since is None else now - since,
        staged_s=prepared - current.started_at if prepared and current.stages else None,
        digest=current.digest,
    )

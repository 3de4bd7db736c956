"""Weakened machines: each lacks one guard of the protocol, by name. The simulation must notice."""

from __future__ import annotations

from collections.abc import Callable

from engine.frontend.coordinator import Coordinator, Steps
from engine.frontend.journal_records import Decided, Finished, Started
from engine.frontend.operation_state import Current, Ended, Seen, Verdict
from engine.frontend.outcomes import RankEnd
from engine.frontend.rank_table import RankTable
from engine.ipc.messages import (
    Commit,
    ControlMessage,
    Park,
    RankPhase,
    Report,
    Said,
    ServingState,
    Undo,
    Word,
)
from engine.protocol import Outcome
from engine.scheduler.participant import OpenOperation, Participant
from tests.engine.simulation.world import Guards


class RankWithoutEpoch(Participant):
    def _is_foreign(self, message: ControlMessage) -> bool:
        return message.inc != self.inc


class TableWithoutEpoch(RankTable):
    def is_foreign(self, message: Report | Said) -> bool:
        return message.inc != self.alive.get(message.rank)


class RankWithoutIncarnation(Participant):
    def _is_foreign(self, message: ControlMessage) -> bool:
        return message.epoch < self.epoch


class TableWithoutIncarnation(RankTable):
    def is_foreign(self, message: Report | Said) -> bool:
        return message.epoch != self.epoch


class TableWithoutOrder(RankTable):
    def is_newer(self, message: Report | Said, seen: Seen) -> bool:
        return True


class RankWithoutAttempt(Participant):
    """A late copy of PARK lengthens the lease."""

    def _park(self, message: Park, op: OpenOperation, now: float) -> None:
        if message.att <= op.att:
            op.lease_until = now + message.lease_s + self._times.margin_s
        super()._park(message, op, now)


class CountsOldAttempts(Coordinator):
    """PARKED for an earlier attempt counts."""

    def _having(self, current: Current, word: Word) -> set[int]:
        attempt, current.att = current.att, 0
        try:
            return super()._having(current, word)
        finally:
            current.att = attempt


class RecoversFirstAttempt(Coordinator):
    def _recovered_attempt(self, record: Started, decided: Decided | None) -> int:
        return record.att


class RankWithoutSeal(Participant):
    def _seal(self, op: int) -> None:
        self.op = None


class CommitsAfterLapse(Participant):
    def _commit(self, message: Commit, op: OpenOperation) -> None:
        if op.phase is RankPhase.LAPSED:
            op.phase = RankPhase.PARKED
            op.att = message.att
        super()._commit(message, op)


class RetriesFailedCommit(Participant):
    def _commit(self, message: Commit, op: OpenOperation) -> None:
        if op.phase is RankPhase.FAILED:
            op.phase = RankPhase.PARKED
        super()._commit(message, op)


class RetriesFailedUndo(Participant):
    def _undo(self, message: Undo, op: OpenOperation) -> None:
        if op.phase is RankPhase.UNDO_FAILED:
            op.phase = RankPhase.COMMITTED
        super()._undo(message, op)


class DropsOldEarly(Participant):
    def _apply(self, op: OpenOperation) -> None:
        super()._apply(op)
        op.kept = None


class RankWithoutLease(Participant):
    def _lapse(self, now: float) -> None:
        return


class LapseOpensCommitted(Participant):
    late = False

    def _lapse(self, now: float) -> None:
        super()._lapse(now)
        self.late = self.op is not None and now >= self.op.lease_until

    @property
    def is_open(self) -> bool:
        committed = self.op is not None and self.op.phase is RankPhase.COMMITTED
        return super().is_open or (committed and self.late and not self.fenced)


class AdmitsParked(Participant):
    @property
    def is_open(self) -> bool:
        return super().is_open or (self.op is not None and self.op.phase is RankPhase.PARKED)


class FenceKeepsQueue(Participant):
    def _fence(self) -> None:
        return


class RepliesEarly(Coordinator):
    def _finish(
        self, current: Current, outcome: Outcome, ends: dict[int, RankEnd], desired: ServingState
    ) -> Steps:
        for action in _ended_first(self, current, outcome, ends, desired):
            self._act(action)
        yield
        yield from super()._finish(current, outcome, ends, desired)


def _ended_first(
    machine: Coordinator,
    current: Current,
    outcome: Outcome,
    ends: dict[int, RankEnd],
    desired: ServingState,
) -> list[Ended]:
    results: list[Ended] = []

    class Catch(Exception):
        pass

    def written(record: object) -> bool:
        assert isinstance(record, Finished)
        results.append(Ended(record.result))
        raise Catch

    original = machine._written
    machine._written = written  # type: ignore[assignment,method-assign]
    try:
        next(Coordinator._finish(machine, current, outcome, ends, desired))
    except Catch:
        return results
    finally:
        machine._written = original  # type: ignore[method-assign]
    return results


class ReleasesEarly(Coordinator):
    def _finish(
        self, current: Current, outcome: Outcome, ends: dict[int, RankEnd], desired: ServingState
    ) -> Steps:
        for rank, inc in current.incs.items():
            self._release(rank, current.op, inc)
        yield
        yield from super()._finish(current, outcome, ends, desired)


class TakesFirstReply(Coordinator):
    def _is_answered(self, silent: list[int], ends: dict[int, RankEnd]) -> bool:
        if not ends or self.current is None:
            return False
        for rank in silent:
            ends[rank] = RankEnd.NEW
        return True


class MergesToBoolean(Coordinator):
    def _judged(self, current: Current, outcome: Outcome) -> Outcome:
        return Outcome.FAILED if outcome is Outcome.PARTIAL else outcome


class AssumesFailed(Coordinator):
    def _give_up(self, current: Current, rank: int, ends: dict[int, RankEnd]) -> None:
        ends[rank] = RankEnd.OLD


class TableWithoutFence(RankTable):
    def is_proven(self, rank: int) -> bool:
        return rank in self.alive and rank in self.seen


class TableWithoutConverge(RankTable):
    def is_proven(self, rank: int) -> bool:
        seen = self.seen.get(rank)
        return super().is_proven(rank) or (
            seen is not None and rank in self.alive and seen.view.state is None
        )


class GreetsNobody(Coordinator):
    def _greet(self) -> None:
        for rank, inc in self.ranks.alive.items():
            if self.ranks.is_known(rank, inc):
                super()._greet()
                return


class ExpiresFirst(Coordinator):
    def _look(self, current: Current, word: Word) -> Verdict | None:
        if self.now >= current.deadline:
            return Verdict.EXPIRED
        return super()._look(current, word)


class ExpiresLate(Coordinator):
    def _judged(self, current: Current, outcome: Outcome) -> Outcome:
        return Outcome.EXPIRED if self.now > current.deadline else outcome


class CancelsLate(Coordinator):
    def cancel(self) -> None:
        if self.current is not None:
            self.current.cancelled = True

    def _judged(self, current: Current, outcome: Outcome) -> Outcome:
        return Outcome.CANCELLED if current.cancelled else outcome


class KeepsHolding(Coordinator):
    def _finish(
        self, current: Current, outcome: Outcome, ends: dict[int, RankEnd], desired: ServingState
    ) -> Steps:
        holding = self.is_holding
        yield from super()._finish(current, outcome, ends, desired)
        self.is_holding = holding and outcome is not Outcome.SUCCEEDED


class TakesTwo(Coordinator):
    def _refuse_if_busy(self) -> None:
        return


class ReleasesOnce(Coordinator):
    def _waits_for_ended(self, message: Report) -> bool:
        return False


MUTANTS: dict[str, Callable[[], Guards]] = {
    "no_epoch": lambda: Guards(participant=RankWithoutEpoch, table=TableWithoutEpoch),
    "no_incarnation": lambda: Guards(
        participant=RankWithoutIncarnation, table=TableWithoutIncarnation
    ),
    "no_order": lambda: Guards(table=TableWithoutOrder),
    "no_attempt": lambda: Guards(participant=RankWithoutAttempt),
    "old_attempt_counts": lambda: Guards(coordinator=CountsOldAttempts),
    "attempt_not_recorded": lambda: Guards(coordinator=RecoversFirstAttempt),
    "no_seal": lambda: Guards(participant=RankWithoutSeal),
    "commit_after_lapse": lambda: Guards(participant=CommitsAfterLapse),
    "no_sticky_failed": lambda: Guards(participant=RetriesFailedCommit),
    "no_sticky_undo": lambda: Guards(participant=RetriesFailedUndo),
    "no_started": lambda: Guards(drop_records=(Started,)),
    "no_decided": lambda: Guards(drop_records=(Decided,)),
    "reply_early": lambda: Guards(coordinator=RepliesEarly),
    "release_early": lambda: Guards(coordinator=ReleasesEarly),
    "drop_old_early": lambda: Guards(participant=DropsOldEarly),
    "first_reply": lambda: Guards(coordinator=TakesFirstReply),
    "merged_bool": lambda: Guards(coordinator=MergesToBoolean),
    "assume_failed": lambda: Guards(coordinator=AssumesFailed),
    "no_fence": lambda: Guards(table=TableWithoutFence),
    "no_converge": lambda: Guards(table=TableWithoutConverge),
    "no_greeting": lambda: Guards(coordinator=GreetsNobody),
    "expire_first": lambda: Guards(coordinator=ExpiresFirst),
    "late_expiry": lambda: Guards(coordinator=ExpiresLate),
    "cancel_late": lambda: Guards(coordinator=CancelsLate),
    "no_lease": lambda: Guards(participant=RankWithoutLease),
    "lapse_opens_committed": lambda: Guards(participant=LapseOpensCommitted),
    "admit_parked": lambda: Guards(participant=AdmitsParked),
    "fence_keeps_queue": lambda: Guards(participant=FenceKeepsQueue),
    "hold_kept_on_failure": lambda: Guards(coordinator=KeepsHolding),
    "no_exclusive": lambda: Guards(coordinator=TakesTwo),
    "no_resend_release": lambda: Guards(coordinator=ReleasesOnce),
}

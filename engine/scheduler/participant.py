"""A rank's side of an operation, as a pure state machine: messages and the time in, answers out.

Knows no socket, clock or tensor; a Host does what the machine decides.
`docs/operation-protocol.md` has its table, and tests/engine/simulation drives this very class. One
thread calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

import msgspec

from engine.config import OperationTimes
from engine.ipc.messages import (
    Abort,
    AskState,
    Commit,
    ControlMessage,
    Converge,
    Park,
    Prepare,
    RankPhase,
    Release,
    Said,
    ServingState,
    Undo,
    View,
    Word,
)
from engine.protocol import Mode, Operation, Places, Staging, parks


@dataclass(slots=True, frozen=True)
class Effect:
    """What a commit did: how long it took, and how many requests it ended or put back."""

    seconds: float = 0.0
    interrupted: int = 0


class CommitFailedError(Exception):
    """The commit did not happen and the old state is intact and proven."""


class UndoFailedError(Exception):
    """The undo did not happen and the new state is intact and proven."""


class Host(Protocol):
    """What a rank can do. Any exception not named here means an unknown state: the rank exits."""

    def places(self) -> Places:
        """What is in flight now."""

    def stage(self, operation: Operation, new: ServingState) -> None:
        """Begin to prepare while serving; ends with a call of `Participant.staged`."""

    def staging(self) -> Staging | None:
        """How far it is with staging, or how that ended."""

    def unstage(self) -> None:
        """Drop what was staged, and the copy kept for an undo. Harmless when there is none."""

    def retract_running(self) -> int:
        """Put running requests back in the queue, their KV released; returns how many."""

    def abort_running(self, message: str) -> int:
        """End running requests with reason abort; waiting ones stay. Returns how many ended."""

    def abort_all(self, message: str) -> None:
        """End running and waiting requests with reason abort."""

    def drop_requests(self) -> None:
        """Forget all requests without a word: their frontend is gone."""

    def commit(self, operation: Operation, new: ServingState) -> Effect:
        """Make the operation so, keeping what an undo needs. Raises CommitFailedError."""

    def undo(self, operation: Operation, old: ServingState) -> None:
        """Take the commit back. Raises UndoFailedError."""

    def converge(self, desired: ServingState) -> None:
        """Begin to take this state, no request running; ends with `Participant.converged`."""


@dataclass(slots=True)
class OpenOperation:
    """The operation this rank is in."""

    id: int
    operation: Operation
    new: ServingState
    lease_until: float
    phase: RankPhase = RankPhase.STAGING
    att: int = 0
    mode: Mode = Mode.WAIT
    kept: ServingState | None = None
    reason: str = ""
    own_queue_ended: bool = False
    effect: Effect = Effect()
    interrupted: int = 0

    @property
    def parks(self) -> bool:
        """It waits for idle, and its rank admits nothing from then on."""
        return parks(self.operation)


_LAPSING = (RankPhase.STAGING, RankPhase.PREPARED, RankPhase.PARKING, RankPhase.PARKED)
_SERVING = (RankPhase.STAGING, RankPhase.PREPARED, RankPhase.LAPSED, RankPhase.REFUSED)
# A repeated COMMIT changes nothing: the first answer stands.
_COMMIT_ANSWER = {
    RankPhase.COMMITTED: Word.COMMITTED,
    RankPhase.UNDO_FAILED: Word.COMMITTED,
    RankPhase.FAILED: Word.FAILED,
    RankPhase.UNDONE: Word.FAILED,
    RankPhase.LAPSED: Word.FAILED,
    RankPhase.REFUSED: Word.FAILED,
}


class Participant:
    """One rank's part in operations; `inc` is this process's incarnation."""

    def __init__(
        self,
        *,
        rank: int,
        inc: int,
        host: Host,
        times: OperationTimes,
        say: Callable[[Said], None],
    ) -> None:
        self.rank = rank
        self.inc = inc
        self.epoch = 0
        self.seq = 0  # highest operation seen; anything lower has ended
        self.state: ServingState | None = None
        self.fenced = False
        self.op: OpenOperation | None = None
        self.report_due = False  # the host sends a Report at the next chance
        self.note = ""  # why it could not take the desired state
        self.converged_op = 0
        self._converging: ServingState | None = None
        self._n = 0
        self._host = host
        self._times = times
        self._say = say

    # ---- what the host asks ------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """May admit requests. Once COMMIT has come, only the coordinator opens the rank again."""
        if self.state is None or self.fenced or not self.state.serves:
            return False
        op = self.op
        return (
            op is None
            or op.phase in _SERVING
            or (op.phase is RankPhase.PARKING and op.mode is Mode.WAIT)
        )

    @property
    def is_stopped(self) -> bool:
        """Computes nothing, whatever is queued: paused, or without memory or weights."""
        return self.state is not None and not self.state.serves

    def view(self) -> View:
        """Where this rank stands."""
        if self.op is not None:
            phase = self.op.phase
        elif self.fenced:
            phase = RankPhase.FENCED
        else:
            phase = RankPhase.BOOT if self.state is None else RankPhase.NONE
        return View(
            state=self.state,
            phase=phase,
            ctx=self.op.id if self.op else 0,
            closed=not self.is_open,
            converged_op=self.converged_op,
            note=self.note,
        )

    def next_n(self) -> int:
        """Number of the next message: the frontend ignores an older view of a rank."""
        self._n += 1
        return self._n

    def lease_left_s(self, now: float) -> float | None:
        """Until this rank serves again by itself; None when it is in no operation."""
        return None if self.op is None else max(0.0, self.op.lease_until - now)

    def staged(self, op_id: int, error: str = "", new: ServingState | None = None) -> None:
        """Staging ended, well or with `error`; `new` is the state in full, where that is known."""
        op = self.op
        if op is None or op.id != op_id or op.phase is not RankPhase.STAGING:
            return
        op.phase = RankPhase.REFUSED if error else RankPhase.PREPARED
        op.reason, op.new = error, new or op.new
        self._answer(op.id, Word.REFUSED if error else Word.PREPARED, message=error)

    def converged(self, desired: ServingState, error: str = "") -> None:
        """The host has taken `desired`, or holds what it held before, and says why."""
        if desired != self._converging:
            return
        self._converging = None
        self.note, self.fenced = error, bool(error)
        if not error:
            self.state = desired
        self.report_due = True

    def tick(self, now: float) -> None:
        """Let time pass: leases lapse, an idle rank parks."""
        self._lapse(now)
        self._try_park()

    # ---- messages ----------------------------------------------------------------------------

    def handle(self, message: ControlMessage, now: float) -> None:
        """Take one message of the frontend."""
        if self._is_foreign(message):
            return
        if message.epoch > self.epoch:
            self.epoch = message.epoch
            self._host.drop_requests()
        self._lapse(now)
        if isinstance(message, AskState):
            self.report_due = True
        elif self._is_ended(message.op):
            return
        elif isinstance(message, Converge):
            self._converge(message)
        elif message.op > self.seq:
            self._begin(message, now)
        elif self.op is None:
            self._answer_ended(message)
        else:
            self._continue(message, self.op, now)

    def _is_foreign(self, message: ControlMessage) -> bool:
        return message.inc != self.inc or message.epoch < self.epoch

    def _is_ended(self, op: int) -> bool:
        return op < self.seq

    def _begin(self, message: ControlMessage, now: float) -> None:
        """The first message of an operation: anything but PREPARE and ABORT is not for us."""
        if isinstance(message, Prepare):
            if self.op is not None:
                self._host.unstage()  # a newer operation: the one before has ended
            self.seq = message.op
            self.op = OpenOperation(
                id=message.op,
                operation=message.operation,
                new=message.new,
                mode=message.mode,
                lease_until=now + message.lease_s + self._times.margin_s,
            )
            if message.mode is Mode.IF_IDLE and self.op.parks and not self._is_idle(self.op):
                self._refuse_busy(self.op)  # at once: nothing is staged for it
            else:
                self._host.stage(message.operation, message.new)
        elif isinstance(message, Abort):
            self._seal(message.op)
            self._answer(message.op, Word.ABORTED)

    def _seal(self, op: int) -> None:
        """Remember an operation as ended, so that its PREPARE still under way is refused."""
        self.seq, self.op = op, None
        self._host.unstage()

    def _answer_ended(self, message: ControlMessage) -> None:
        match message:
            case Abort():
                self._answer(message.op, Word.ABORTED)
            case Commit():
                self._answer(message.op, Word.FAILED, att=message.att, message="operation ended")
            case Undo():
                self._answer(message.op, Word.UNDONE, att=message.att)
            case Release():
                self.report_due = True
            case Prepare() | Park():
                self._answer(message.op, Word.REFUSED, message="operation ended")
            case AskState() | Converge():
                return
            case _:
                assert_never(message)

    def _continue(self, message: ControlMessage, op: OpenOperation, now: float) -> None:
        match message:
            case Prepare():
                if op.phase is not RankPhase.STAGING:
                    refused = op.phase in (RankPhase.REFUSED, RankPhase.LAPSED)
                    word = Word.REFUSED if refused else Word.PREPARED
                    self._answer(op.id, word, message=op.reason)
            case Park():
                self._park(message, op, now)
            case Commit():
                self._commit(message, op)
            case Undo():
                self._undo(message, op)
            case Abort():
                self._end()
                self._answer(message.op, Word.ABORTED)
            case Release():
                self._end()
                if not message.serve:
                    self._fence()
                self.report_due = True
            case AskState() | Converge():
                return
            case _:
                assert_never(message)

    def _end(self) -> None:
        """RELEASE follows FINISHED: now the copy kept for an undo may go."""
        self.op = None
        self._host.unstage()

    def _fence(self) -> None:
        self.fenced = True
        self._host.abort_all("fenced: this rank's state is not the desired one")

    # ---- parking -----------------------------------------------------------------------------

    def _park(self, message: Park, op: OpenOperation, now: float) -> None:
        if op.phase in (RankPhase.REFUSED, RankPhase.LAPSED):
            self._answer(op.id, Word.REFUSED, att=op.att, message=op.reason)
            return
        if op.phase not in (RankPhase.PREPARED, RankPhase.PARKING, RankPhase.PARKED):
            return
        if message.att <= op.att:  # a late copy never lengthens the lease
            if op.phase is RankPhase.PARKED:
                self._answer(op.id, Word.PARKED, att=op.att)
            return
        op.att, op.mode = message.att, message.mode
        op.lease_until = now + message.lease_s + self._times.margin_s
        if op.phase is RankPhase.PARKED:
            self._answer(op.id, Word.PARKED, att=op.att)
            return
        op.phase = RankPhase.PARKING
        if message.mode is Mode.IF_IDLE and not self._is_idle(op):
            self._refuse_busy(op)
        elif message.mode is Mode.RETRACT:
            op.interrupted += self._host.retract_running()
        elif message.mode is Mode.ABORT:
            op.interrupted += self._host.abort_running("aborted by an operation on this engine")
        self._try_park()

    def _refuse_busy(self, op: OpenOperation) -> None:
        op.phase, op.reason = RankPhase.REFUSED, "not idle"
        self._answer(op.id, Word.REFUSED, att=op.att, message=op.reason)

    def _is_idle(self, op: OpenOperation) -> bool:
        """Fully idle; where new requests are held, those that wait hold no KV and may stay.

        So may they on a rank that is paused: they wait for its end, not for a place to run.
        """
        places = self._host.places()
        serves = self.state is None or self.state.serves
        if serves and op.mode in (Mode.WAIT, Mode.IF_IDLE):
            return places.is_idle
        return msgspec.structs.replace(places, waiting=0).is_idle

    def _try_park(self) -> None:
        op = self.op
        if op is not None and op.phase is RankPhase.PARKING and self._is_idle(op):
            op.phase = RankPhase.PARKED
            self._answer(op.id, Word.PARKED, att=op.att)

    def _lapse(self, now: float) -> None:
        op = self.op
        if op is None or now < op.lease_until:
            return
        if op.phase in _LAPSING:
            op.phase, op.reason = RankPhase.LAPSED, "lease lapsed"
            self._host.unstage()  # the old state serves on; a later COMMIT is refused
            self.report_due = True
        elif not self.is_open and not op.own_queue_ended:
            op.own_queue_ended = True
            self._host.abort_all("this rank's state is not confirmed")

    # ---- commit and undo ---------------------------------------------------------------------

    def _commit(self, message: Commit, op: OpenOperation) -> None:
        if op.phase is RankPhase.PREPARED and not op.parks:
            op.att = message.att
            self._apply(op)
        elif op.phase is RankPhase.PARKED:
            if message.att != op.att:
                return  # for another attempt; the coordinator sends the right one again
            self._apply(op)
        if op.phase in _COMMIT_ANSWER:
            self._answer(op.id, _COMMIT_ANSWER[op.phase], att=op.att, message=op.reason)

    def _apply(self, op: OpenOperation) -> None:
        assert not (op.parks and self.is_open), f"commit of {op.id} while open to requests"
        assert self.state is not None
        try:
            op.effect = self._host.commit(op.operation, op.new)
        except CommitFailedError as error:
            op.phase, op.reason = RankPhase.FAILED, str(error)
            return
        op.interrupted += op.effect.interrupted
        op.phase, op.kept, self.state = RankPhase.COMMITTED, self.state, op.new

    def _undo(self, message: Undo, op: OpenOperation) -> None:
        if op.phase is RankPhase.COMMITTED:
            self._take_back(op)
        elif op.phase not in (RankPhase.UNDO_FAILED, RankPhase.LAPSED):
            op.phase = RankPhase.UNDONE  # never committed here, and now it never will be
        failed = op.phase is RankPhase.UNDO_FAILED
        word = Word.UNDO_FAILED if failed else Word.UNDONE
        self._answer(op.id, word, att=message.att, message=op.reason if failed else "")

    def _take_back(self, op: OpenOperation) -> None:
        assert op.kept is not None, f"undo of operation {op.id} asked, the old copy is gone"
        try:
            self._host.undo(op.operation, op.kept)
        except UndoFailedError as error:
            op.phase, op.reason = RankPhase.UNDO_FAILED, str(error)
            return
        op.phase, self.state = RankPhase.UNDONE, op.kept

    def _converge(self, message: Converge) -> None:
        self.seq, self.converged_op = max(self.seq, message.op), message.op
        self.report_due = True
        if self._converging == message.desired:
            return
        self._end()
        self.note, self.fenced = "", False
        if self.state == message.desired:
            self._converging = None
            return
        self._converging, self.state = message.desired, None
        self._host.abort_all("this rank is converging to the desired state")
        self._host.converge(message.desired)

    def _answer(self, op: int, word: Word, *, att: int = 0, message: str = "") -> None:
        busy = word in (Word.REFUSED, Word.PARKED)
        self._say(
            Said(
                rank=self.rank,
                inc=self.inc,
                epoch=self.epoch,
                n=self.next_n(),
                view=self.view(),
                op=op,
                att=att,
                word=word,
                message=message,
                places=self._host.places() if busy else None,
                **self._facts(word),
            )
        )

    def _facts(self, word: Word) -> dict[str, Any]:  # Any: the named fields of Said
        op = self.op
        if op is None:
            return {}
        if word is Word.PREPARED:
            return {"new": op.new, "staging": self._host.staging()}
        if word is Word.COMMITTED:
            return {"effect_s": op.effect.seconds, "interrupted": op.interrupted}
        return {"interrupted": op.interrupted} if word is Word.PARKED else {}

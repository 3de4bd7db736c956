"""One exclusive operation over all ranks, as a pure state machine: inputs and time in, actions out.

Knows no socket and no clock. The journal is the one thing it calls itself, because the order of
durable writes is part of the protocol. `docs/operation-protocol.md` has its table, and
tests/engine/simulation drives this very class. Call `step` after every input and at least every
`resend_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from engine.config import OperationTimes
from engine.frontend.journal_records import Decided, Finished, JournalFullError, Record, Started
from engine.frontend.operation_state import (
    FORCED,
    HOLDING_MODES,
    Action,
    Current,
    Ended,
    JournalLike,
    Kill,
    SendTo,
    Verdict,
    recovered,
    started,
)
from engine.frontend.outcomes import (
    RankEnd,
    agree,
    judge,
    note_answer,
    repaired,
    result_of,
)
from engine.frontend.rank_table import RankTable, refuse_unless_proven
from engine.frontend.to_rank import message_for
from engine.ipc.messages import (
    Abort,
    AskState,
    Commit,
    Converge,
    Park,
    Prepare,
    RankPhase,
    Release,
    Report,
    Said,
    ServingState,
    Undo,
    Word,
)
from engine.protocol import ErrorCode, Outcome, Phase, ProtocolError

Steps = Generator[None, None, None]
_CHANGEABLE = (Phase.PREPARING, Phase.WAITING_FOR_IDLE)


class Coordinator:
    """Owns the pending operation and the question which ranks may serve."""

    def __init__(
        self, *, dp_size: int, ranks: RankTable, times: OperationTimes, journal: JournalLike
    ) -> None:
        self.dp_size = dp_size
        self.ranks = ranks
        self.times = times
        self.current: Current | None = None
        self.is_ready = False  # recovery is over: commands are taken
        self.is_holding = False  # new requests wait at the frontend
        self.now = 0.0
        self.disk_fault = ""  # why the end of an operation is not on disk yet
        self.num_held: Callable[[], int] = lambda: 0  # requests that wait at the frontend
        self._journal = journal
        self._actions: list[Action] = []
        self._greeted: dict[int, float] = {}
        self._killed: dict[int, float] = {}
        self._steps = self._main()

    # ---- inputs ------------------------------------------------------------------------------

    def on_processes(self, alive: dict[int, int]) -> None:
        """`launch` says which incarnations live."""
        self.ranks.alive = dict(alive)

    def on_message(self, message: Report | Said, now: float) -> bool:
        """A rank reports or answers. False when the message is not for this frontend."""
        if not self.ranks.take(message, now):
            return False
        current = self.current
        if isinstance(message, Said):
            if current is not None and message.op == current.op:
                note_answer(current, message)
        elif self._waits_for_ended(message):
            # Its RELEASE was lost: it still waits for the end of an operation that has ended.
            self._release(message.rank, message.view.ctx, message.inc)
        return True

    def _waits_for_ended(self, message: Report) -> bool:
        ctx = message.view.ctx
        running = self.current.op if self.current is not None else 0
        return 0 < ctx <= self._journal.index.last_ended_op and ctx != running

    def submit(self, current: Current) -> None:
        """Take an operation. STARTED is on disk when this returns. Raises ProtocolError."""
        self._refuse_if_busy()
        if not current.is_repair:
            refuse_unless_proven(self.ranks, self.dp_size)
        current.op = self._journal.index.last_op + 1
        current.incs = dict(self.ranks.alive)
        try:
            self._journal.reserve()
            self._journal.append(started(current))
        except JournalFullError as error:
            raise ProtocolError(ErrorCode.JOURNAL_UNAVAILABLE, str(error)) from error
        self.current = current

    def _refuse_if_busy(self) -> None:
        if not self.is_ready:
            raise ProtocolError(ErrorCode.NOT_READY, "the engine is still recovering")
        if self.current is not None:
            raise ProtocolError(
                ErrorCode.OPERATION_PENDING,
                f"operation {self.current.op_id} ({self.current.operation.kind}) holds the engine",
                holder=self.current.op_id,
                remaining_s=max(0.0, self.current.deadline - self.now),
            )

    def cancel(self) -> None:
        """End the pending operation without effect. Raises ProtocolError once it is decided."""
        if self.current is not None and self.current.phase is Phase.CANCELLING:
            return  # it ends without effect already
        self._changeable().cancelled = True

    def extend(self, by_s: float) -> None:
        """Move the deadline; every rank parks again under a new attempt, with a new lease."""
        current = self._changeable()
        current.deadline = max(self.now, current.deadline + by_s)
        current.patience_s = max(0.0, current.patience_s + by_s)
        current.start_by = max(current.start_by, current.deadline)
        current.changed = True

    def force(self) -> None:
        """Take the next harsher mode, under a new attempt."""
        current = self._changeable()
        current.mode = FORCED[current.mode]
        current.deadline = max(current.deadline, self.now + self.times.budget_s)
        current.patience_s = max(current.patience_s, self.times.budget_s)
        current.start_by = max(current.start_by, current.deadline)
        current.changed = True

    def _changeable(self) -> Current:
        current = self.current
        if current is None:
            raise ProtocolError(ErrorCode.UNKNOWN_OPERATION, "no operation is pending")
        if current.phase not in _CHANGEABLE:
            raise ProtocolError(
                ErrorCode.NOT_CANCELLABLE,
                f"operation {current.op_id} is {current.phase}; it can no longer be changed",
            )
        return current

    def step(self, now: float) -> list[Action]:
        """Go on by one step; returns what to do. Call again while it returns something."""
        self.now = now
        next(self._steps)
        actions, self._actions = self._actions, []
        return actions

    # ---- the machine: each `yield` waits for the next step

    def _main(self) -> Steps:
        yield from self._meet()
        if self._journal.index.open is not None:
            yield from self._recover(self._journal.index.open, self._journal.index.decided)
        self.is_ready = True
        while True:
            if self.current is not None:
                yield from self._run(self.current)
            self._greet()
            yield

    def _meet(self) -> Steps:
        """Hear every living participant of an open operation before ending it."""
        until, asked = self.now + self.times.budget_s, dict[int, float]()
        while True:
            record = self._journal.index.open
            if record is None:
                return
            silent = [
                rank
                for rank, inc in record.incs.items()
                if self.ranks.lives(rank, inc) and not self.ranks.is_known(rank, inc)
            ]
            if self.ranks.alive and not silent:
                return
            for rank in silent:
                inc = record.incs[rank]
                if self.now > until:
                    self._kill(rank, inc)
                elif self._is_due(asked, rank):
                    self._act(SendTo(rank, AskState(epoch=self.ranks.epoch, inc=inc)))
            yield

    def _recover(self, record: Started, decided: Decided | None) -> Steps:
        """End an operation of an earlier epoch before taking commands."""
        att = self._recovered_attempt(record, decided)
        current = self.current = recovered(record, decided, att, self.now)
        if current.is_repair:
            yield from self._repair(current)
        elif decided is None:  # presumed abort: no rank can have been told to commit
            current.fault = "the engine restarted before the decision"
            yield from self._abort(current, Verdict.FAILED)
        else:
            yield from self._commit(current, undo=decided.verdict == "undo")

    def _recovered_attempt(self, record: Started, decided: Decided | None) -> int:
        return decided.att if decided else record.att

    def _run(self, current: Current) -> Steps:
        if current.is_repair:
            yield from self._repair(current)
            return
        verdict = yield from self._until_parked(current)
        if verdict is Verdict.READY and not self._decide(current):
            verdict = Verdict.FAILED
        yield
        if verdict is Verdict.READY:
            yield from self._commit(current)
        else:
            yield from self._abort(current, verdict)

    def _decide(self, current: Current) -> bool:
        try:
            self._journal.append(
                Decided(op=current.op, verdict="commit", att=current.att, new=current.new)
            )
        except JournalFullError as error:
            current.fault = str(error)
            return False
        return True

    def _until_parked(self, current: Current) -> Generator[None, None, Verdict]:
        current.stage_until = max(current.deadline, self.now + current.staging_s(self.times))
        for word in (Word.PREPARED, Word.PARKED) if current.parks else (Word.PREPARED,):
            parking = word is Word.PARKED
            current.phase = Phase.WAITING_FOR_IDLE if parking else Phase.PREPARING
            sent: dict[int, float] = {}
            while (verdict := self._look(current, word)) is None:
                if current.changed:  # earlier PARKED no longer count
                    current.changed, current.att = False, current.att + 1
                    sent.clear()
                self.is_holding = parking and current.mode in HOLDING_MODES
                if current.held_since is None and self.is_holding:
                    current.held_since = self.now
                for rank in sorted(current.incs.keys() - self._having(current, word)):
                    if self._is_due(sent, rank):
                        self._send(current, rank, Park if parking else Prepare)
                yield
            if verdict is not Verdict.READY:
                return verdict
            if not parking:
                self._all_prepared(current)
        return agree(current)

    def _all_prepared(self, current: Current) -> None:
        """From here on the caller's time counts: an idle engine is never late."""
        current.prepared_at = self.now
        if current.stages:
            current.deadline = min(self.now + current.patience_s, max(current.start_by, self.now))

    def _look(self, current: Current, word: Word) -> Verdict | None:
        """Answers first, then cancel, then the deadline: idle wins."""
        if self._is_faulted(current, word):
            return Verdict.FAILED
        if len(self._having(current, word)) == len(current.incs):
            if word is Word.PREPARED or self._may_start(current):
                return Verdict.READY
            return Verdict.EXPIRED
        if current.cancelled:
            return Verdict.CANCELLED
        until = current.stage_until if word is Word.PREPARED else current.deadline
        return Verdict.EXPIRED if self.now >= until else None

    def _is_faulted(self, current: Current, word: Word) -> bool:
        """Some rank ends the attempt. Where each rank's reason is wanted, the others are given a
        little time to tell theirs."""
        faults = {rank: self._fault(current, rank, inc) for rank, inc in current.incs.items()}
        faults = {rank: text for rank, text in faults.items() if text}
        if not faults:
            return False
        current.messages.update(faults)
        if not current.opens or word is not Word.PREPARED or current.cancelled:
            return True
        if current.faulted_at is None:
            current.faulted_at = self.now
        told = self._having(current, word) | faults.keys()
        return (
            len(told) == len(current.incs) or self.now >= current.faulted_at + self.times.budget_s
        )

    def _fault(self, current: Current, rank: int, inc: int) -> str:
        """Why this rank ends the attempt, or nothing."""
        if not self.ranks.lives(rank, inc):
            return "the rank died"
        if self.ranks.attempt_of(current.op, rank, Word.REFUSED, inc) is not None:
            return current.messages.get(rank, "refused")
        if not self.ranks.is_heard(rank, self.now, self.times.silent_s):
            return f"the rank has been silent for {self.times.silent_s:.0f} s"
        view = self.ranks.seen[rank].view if rank in self.ranks.seen else None
        if view and view.ctx == current.op and view.phase is RankPhase.LAPSED:
            return "its lease lapsed"
        return ""

    def _having(self, current: Current, word: Word) -> set[int]:
        need = current.att if word is Word.PARKED else 0
        having = set()
        for rank, inc in current.incs.items():
            attempt = self.ranks.attempt_of(current.op, rank, word, inc)
            if attempt is not None and attempt >= need:
                having.add(rank)
        if word is Word.PARKED:
            current.parked = having
            if having and current.held_since is None:  # the first rank stopped admitting
                current.held_since = self.now
        return having

    def _may_start(self, current: Current) -> bool:
        """Not when woken too late for the leases, or past the moment the caller allowed."""
        times = self.times
        leases_end = current.deadline + times.grace_s - times.margin_s
        in_time = self.now <= current.start_by + times.margin_s
        return in_time and self.now + times.budget_s <= leases_end

    def _commit(self, current: Current, *, undo: bool = False) -> Steps:
        ends: dict[int, RankEnd] = {}
        if not undo:
            current.phase = Phase.COMMITTING
            yield from self._ask(current, Commit, {Word.COMMITTED, Word.FAILED}, ends)
            undo = current.has_inverse and {RankEnd.OLD, RankEnd.NEW} <= set(ends.values())
            if undo:
                # Not needed for safety (the answers to COMMIT stick), but the reader wants it.
                self._written(Decided(op=current.op, verdict="undo", att=current.att))
            yield
        if undo:
            current.phase = Phase.COMPENSATING
            ends = {}
            yield from self._ask(current, Undo, {Word.UNDONE, Word.UNDO_FAILED}, ends)
        none_new = RankEnd.NEW not in ends.values()
        desired = current.old if undo or none_new else current.new
        outcome = self._judged(current, judge(ends, undone=undo))
        yield from self._finish(current, outcome, ends, desired)

    def _judged(self, current: Current, outcome: Outcome) -> Outcome:
        """After the decision neither the deadline nor a cancel changes the outcome."""
        return outcome

    def _repair(self, current: Current) -> Steps:
        """Converge every living rank; `desired` stays what it was, so doing it again is safe."""
        current.phase = Phase.COMMITTING
        desired, until = self._journal.index.desired, self.now + self.times.stage_s
        current.old = current.new = desired
        ends: dict[int, RankEnd] = {}
        sent: dict[int, float] = {}
        while self.now < until and current.incs.keys() - ends.keys():
            for rank, inc in current.incs.items():
                end = repaired(self.ranks, current, rank, inc)
                if end is not None:
                    ends[rank] = end
                elif self._is_due(sent, rank):
                    self._act(SendTo(rank, self._converge(inc, current.op)))
            yield
        for rank in current.incs.keys() - ends.keys():
            ends[rank] = RankEnd.OLD
            current.messages.setdefault(rank, "it did not reach the desired state in time")
        yield from self._finish(current, judge(ends, undone=False), ends, desired)

    def _abort(self, current: Current, verdict: Verdict) -> Steps:
        current.phase = Phase.CANCELLING
        ends: dict[int, RankEnd] = {}
        yield from self._ask(current, Abort, {Word.ABORTED}, ends)
        self.is_holding = False  # the ranks serve as before, whenever the end gets on disk
        yield from self._finish(current, Outcome(verdict.value), ends, current.old)

    def _ask(
        self,
        current: Current,
        kind: type[Commit | Undo | Abort],
        words: set[Word],
        ends: dict[int, RankEnd],
    ) -> Steps:
        """Send until each participant answers or is dead; a silent one is killed, never guessed."""
        until, sent = self.now + self.times.budget_s, dict[int, float]()
        while True:
            for rank, inc in current.incs.items():
                end = self._end_of(current.op, rank, inc, words)
                if end is not None:
                    ends[rank] = end
            silent = sorted(current.incs.keys() - ends.keys())
            if self._is_answered(silent, ends):
                return
            for rank in silent:
                if self.now > until:
                    self._give_up(current, rank, ends)
                elif self._is_due(sent, rank):
                    self._send(current, rank, kind)
            yield

    def _is_answered(self, silent: list[int], ends: dict[int, RankEnd]) -> bool:
        return not silent

    def _give_up(self, current: Current, rank: int, ends: dict[int, RankEnd]) -> None:
        self._kill(rank, current.incs[rank])

    def _end_of(self, op: int, rank: int, inc: int, words: set[Word]) -> RankEnd | None:
        for word in words:
            if self.ranks.attempt_of(op, rank, word, inc) is not None:
                return RankEnd.of(word)
        return None if self.ranks.lives(rank, inc) else RankEnd.DEAD

    def _finish(
        self, current: Current, outcome: Outcome, ends: dict[int, RankEnd], desired: ServingState
    ) -> Steps:
        epoch = self._journal.index.epoch
        result = result_of(
            current,
            outcome,
            ends,
            self.ranks.seen,
            desired=desired,
            now=self.now,
            epoch=epoch.text if epoch else "",
            held=self.num_held(),
        )
        while not self._written(Finished(op=current.op, desired=desired, result=result)):
            yield
        yield
        self._act(Ended(result))
        self.current, self.is_holding = None, False  # whatever the outcome
        self.ranks.forget_answers()
        for rank, inc in current.incs.items():
            self._release(rank, current.op, inc)

    def _written(self, record: Record) -> bool:
        """Space was reserved, so only a failing disk says no: then nothing may be answered yet."""
        try:
            self._journal.append(record)
        except JournalFullError as error:
            self.disk_fault = str(error)
            return False
        self.disk_fault = ""
        return True

    def _greet(self) -> None:
        """A newborn rank learns the epoch, then the state it is to serve."""
        for rank, inc in self.ranks.alive.items():
            known = self.ranks.is_known(rank, inc) and self._journal.index.is_adopted
            if known and (self.ranks.has_state(rank) or self.ranks.is_fenced(rank)):
                continue
            if self._is_due(self._greeted, rank):
                self._act(
                    SendTo(
                        rank,
                        self._converge(inc) if known else AskState(epoch=self.ranks.epoch, inc=inc),
                    )
                )

    def _converge(self, inc: int, op: int | None = None) -> Converge:
        index = self._journal.index
        op = index.last_ended_op if op is None else op
        return Converge(epoch=self.ranks.epoch, inc=inc, op=op, desired=index.desired)

    def _act(self, action: Action) -> None:
        self._actions.append(action)

    def _is_due(self, sent: dict[int, float], rank: int) -> bool:
        if self.now - sent.get(rank, float("-inf")) < self.times.resend_s:
            return False
        sent[rank] = self.now
        return True

    def _kill(self, rank: int, inc: int) -> None:
        if self.ranks.lives(rank, inc) and self._is_due(self._killed, rank):
            self._act(Kill(rank, inc))

    def _release(self, rank: int, op: int, inc: int) -> None:
        if self.ranks.lives(rank, inc):
            serve = self.ranks.is_proven(rank)
            self._act(SendTo(rank, Release(epoch=self.ranks.epoch, inc=inc, op=op, serve=serve)))

    def _send(
        self, current: Current, rank: int, kind: type[Prepare | Park | Commit | Undo | Abort]
    ) -> None:
        until = current.stage_until if kind is Prepare else current.deadline
        lease_s = max(0.0, until + self.times.grace_s - self.now)
        message = message_for(kind, current, rank, epoch=self.ranks.epoch, lease_s=lease_s)
        self._act(SendTo(rank, message))

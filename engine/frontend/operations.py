"""Operations as callers see them: submit, follow, list, query and seal, extend, cancel, force.

Stands between the callers (HTTP routes, control socket) and the coordinator: memo, limits, waiting
for the end. A refused command has changed nothing.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from engine.config import OperationTimes
from engine.frontend.coordinator import Coordinator
from engine.frontend.journal_records import JournalFullError, JournalIndex, Noted, Sealed
from engine.frontend.operation_state import Current, JournalLike, digest_of
from engine.ipc.messages import ServingState
from engine.protocol import (
    MAX_TIMEOUT_S,
    WEIGHT_UPDATES,
    AbortRequests,
    ErrorCode,
    Mode,
    Operation,
    OperationKind,
    OperationResult,
    OperationView,
    Outcome,
    ProtocolError,
    QueryStatus,
    parks,
)

# Their deadline counts from the end of staging, and so does the last moment they may start.
_STAGED = WEIGHT_UPDATES | {OperationKind.ATTACH_STORAGE_BACKEND}
_MIN_PROGRESS_S = 0.25
# An idle engine needs some milliseconds to say so; a shorter timeout would expire it unheard.
_MIN_PATIENCE_S = 0.1


@dataclass(slots=True)
class Follower:
    """Somebody who waits for the end of an operation."""

    op_id: str
    queue: asyncio.Queue[OperationView | OperationResult] = field(default_factory=asyncio.Queue)


def _same(operation: Operation, old: ServingState, op_id: str) -> ServingState:
    return old


def _none(operation: AbortRequests) -> tuple[int, Callable[[], None]]:
    return 0, lambda: None


class Operations:
    """The engine's operations. `view` renders the pending one."""

    def __init__(
        self,
        *,
        coordinator: Coordinator,
        journal: JournalLike,
        times: OperationTimes,
        drive: Callable[[], None],
        view: Callable[[Current], OperationView],
        clock: Callable[[], float] = time.monotonic,
        accept: Callable[[Operation], Operation] = lambda operation: operation,
        new_state: Callable[[Operation, ServingState, str], ServingState] = _same,
        to_abort: Callable[[AbortRequests], tuple[int, Callable[[], None]]] = _none,
        noted: Callable[[OperationResult], None] = lambda _: None,
    ) -> None:
        """`accept` takes an operation in, and gives it back without what no record may hold;
        `new_state` says where an operation leads; `to_abort` how many requests it would end, and
        ends them when called; `noted` hears of what was done at once."""
        self._coordinator = coordinator
        self._journal = journal
        self._times = times
        self._drive = drive
        self._view = view
        self._clock = clock
        self._accept = accept
        self._new_state = new_state
        self._to_abort = to_abort
        self.noted = noted
        self._followers: list[Follower] = []
        self._submitted: dict[str, Operation] = {}  # the newest; one at a time
        self._told: tuple[object, ...] = ()
        self._told_at = 0.0

    @property
    def _index(self) -> JournalIndex:
        return self._journal.index

    # ---- commands ----------------------------------------------------------------------------

    def submit(
        self,
        *,
        op_id: str,
        operation: Operation,
        mode: Mode,
        timeout_s: float,
        start_by: float | None = None,
        requested_by: str = "",
    ) -> Follower:
        """Start an operation, or follow the one that has this id. Raises ProtocolError.

        `start_by` is on this process's monotonic clock: no effect begins after it.
        """
        operation = self._accept(operation)
        digest = digest_of(operation)
        known = self._known(op_id, digest)
        if known is not None:
            return known
        now = self._clock()
        if isinstance(operation, AbortRequests):
            return self._abort_requests(op_id, operation, mode, now, digest)
        mode = self._checked_mode(mode, timeout_s)
        if start_by is not None and start_by < now:
            raise ProtocolError(
                ErrorCode.TOO_LATE,
                f"this command came {now - start_by:.1f} s after the last moment it may start",
            )
        patience_s = max(timeout_s, _MIN_PATIENCE_S)
        if mode not in (Mode.WAIT, Mode.DRAIN) or not parks(operation):
            patience_s = self._quick_s(timeout_s)
        deadline = now + patience_s
        if start_by is not None and mode in (Mode.WAIT, Mode.DRAIN):
            deadline = min(deadline, start_by)
        if operation.kind in _STAGED:
            start_by = math.inf if start_by is None else start_by
        desired = self._index.desired
        self._coordinator.now = now
        self._coordinator.submit(
            Current(
                op=0,
                op_id=op_id,
                operation=operation,
                mode=mode,
                att=1,
                timeout_s=timeout_s,
                patience_s=patience_s,
                started_at=now,
                deadline=deadline,
                start_by=deadline if start_by is None else max(start_by, deadline),
                incs={},
                old=desired,
                new=self._new_state(operation, desired, op_id),
                requested_by=requested_by,
                digest=digest,
            )
        )
        self._submitted = {op_id: operation}
        follower = self._follow(op_id)
        self._drive()
        return follower

    def _abort_requests(
        self, op_id: str, operation: AbortRequests, mode: Mode, now: float, digest: str
    ) -> Follower:
        """Done at once, whatever else is pending: recorded first, so that it is done once."""
        if not self._coordinator.is_ready:
            raise ProtocolError(ErrorCode.NOT_READY, "the engine is still recovering")
        count, abort = self._to_abort(operation)
        epoch = self._index.epoch
        result = OperationResult(
            op_id=op_id,
            kind=operation.kind,
            mode=mode,
            outcome=Outcome.SUCCEEDED,
            message=f"{count} requests were ended" if count != 1 else "1 request was ended",
            ranks=[],
            started_clock_s=now,
            finished_clock_s=now,
            epoch=epoch.text if epoch else "",
            interrupted=count,
            digest=digest,
        )
        try:
            self._journal.append(Noted(result=result))
        except JournalFullError as error:
            raise ProtocolError(ErrorCode.JOURNAL_UNAVAILABLE, str(error)) from error
        abort()
        follower = Follower(op_id)
        follower.queue.put_nowait(result)
        self.noted(result)
        return follower

    def _known(self, op_id: str, digest: str) -> Follower | None:
        """An id seen before is never run again, and stands for what it was first used for."""
        result = self._index.results.get(op_id)
        current = self._coordinator.current
        before = result.digest if result is not None else ""
        if current is not None and current.op_id == op_id:
            before = current.digest
        if before and before != digest:
            raise ProtocolError(
                ErrorCode.INVALID_ARGUMENT,
                f"operation {op_id} was asked for something else before; use another id",
            )
        if result is not None:
            follower = Follower(op_id)
            follower.queue.put_nowait(result)
            return follower
        if self._current_is(op_id):
            return self._follow(op_id)
        if op_id in self._index.sealed:
            raise ProtocolError(ErrorCode.SEALED, f"operation {op_id} was sealed: it never runs")
        if self._index.is_too_old(op_id):
            raise ProtocolError(
                ErrorCode.TOO_OLD, f"operation {op_id} is older than this engine remembers"
            )
        return None

    def _checked_mode(self, mode: Mode, timeout_s: float) -> Mode:
        check_timeout(timeout_s)
        if timeout_s == 0 and mode is Mode.WAIT:
            return Mode.IF_IDLE
        if timeout_s == 0 and mode is Mode.DRAIN:
            raise ProtocolError(
                ErrorCode.INVALID_ARGUMENT, "drain needs a timeout above 0: it waits for requests"
            )
        return mode

    def _quick_s(self, timeout_s: float) -> float:
        """Modes that need no waiting still need an answer of every rank."""
        return max(timeout_s, self._times.budget_s)

    def extend(self, op_id: str, by_s: float) -> OperationView:
        """Move the deadline. Raises ProtocolError."""
        if not math.isfinite(by_s) or abs(by_s) > MAX_TIMEOUT_S:
            raise ProtocolError(ErrorCode.INVALID_ARGUMENT, "by_s must be a finite number")
        current = self._pending(op_id)
        self._coordinator.extend(by_s)
        return self._after(current)

    def cancel(self, op_id: str) -> OperationView:
        """End without effect. Raises ProtocolError once the decision is recorded."""
        current = self._pending(op_id)
        self._coordinator.cancel()
        return self._after(current)

    def force(self, op_id: str) -> OperationView:
        """Take the next harsher mode. Raises ProtocolError."""
        current = self._pending(op_id)
        self._coordinator.force()
        return self._after(current)

    def _after(self, current: Current) -> OperationView:
        view = self._view(current)
        self._drive()
        return view if self._coordinator.current is None else self._view(current)

    def _pending(self, op_id: str) -> Current:
        self._coordinator.now = self._clock()
        current = self._coordinator.current
        if current is not None and current.op_id == op_id:
            return current
        if op_id in self._index.results:
            outcome = self._index.results[op_id].outcome
            raise ProtocolError(
                ErrorCode.NOT_CANCELLABLE, f"operation {op_id} has ended: {outcome}"
            )
        raise ProtocolError(ErrorCode.UNKNOWN_OPERATION, f"no operation {op_id}")

    # ---- questions ---------------------------------------------------------------------------

    def query(
        self, op_id: str, *, seal: bool
    ) -> tuple[QueryStatus, OperationView | None, OperationResult | None]:
        """What became of an id; an unknown one is sealed if asked. Raises ProtocolError."""
        result = self._index.results.get(op_id)
        if result is not None:
            return QueryStatus.FINISHED, None, result
        if self._current_is(op_id):
            assert self._coordinator.current is not None
            return QueryStatus.OPEN, self._view(self._coordinator.current), None
        if self._index.is_too_old(op_id):
            return QueryStatus.TOO_OLD, None, None
        if seal and op_id not in self._index.sealed:
            try:
                self._journal.append(Sealed(op_id=op_id))
            except JournalFullError as error:
                raise ProtocolError(ErrorCode.JOURNAL_UNAVAILABLE, str(error)) from error
        return QueryStatus.NEVER, None, None

    def _current_is(self, op_id: str) -> bool:
        current = self._coordinator.current
        return current is not None and current.op_id == op_id

    def pending(self) -> OperationView | None:
        """The open operation."""
        current = self._coordinator.current
        return None if current is None else self._view(current)

    def finished(self, limit: int) -> list[OperationResult]:
        """The newest ended operations, newest first."""
        results = self._index.results
        return [results[op_id] for op_id in list(reversed(results))[:limit]]

    # ---- waiting -----------------------------------------------------------------------------

    def _follow(self, op_id: str) -> Follower:
        follower = Follower(op_id)
        self._followers.append(follower)
        return follower

    def unfollow(self, follower: Follower) -> None:
        """Stop listening; the operation goes on."""
        if follower in self._followers:
            self._followers.remove(follower)

    async def progress(self, follower: Follower) -> AsyncIterator[OperationView | OperationResult]:
        """Views of the operation, then its result as the last item."""
        try:
            while True:
                item = await follower.queue.get()
                yield item
                if isinstance(item, OperationResult):
                    return
        finally:
            self.unfollow(follower)

    async def result(self, follower: Follower) -> OperationResult:
        """Wait for the end."""
        async for item in self.progress(follower):
            if isinstance(item, OperationResult):
                return item
        raise AssertionError("progress ends with a result")

    # ---- from the frontend's loop ------------------------------------------------------------

    def operation_of(self, op_id: str) -> Operation | None:
        """What was asked, of the newest operation; None of one that an earlier frontend took."""
        return self._submitted.get(op_id)

    def ended(self, result: OperationResult) -> None:
        """An end is on disk: tell those who wait."""
        for follower in list(self._followers):
            if follower.op_id == result.op_id:
                follower.queue.put_nowait(result)
                self._followers.remove(follower)
        self._told = ()

    def tell_progress(self, now: float) -> OperationView | None:
        """Tell followers when the pending operation moved; returns the view if it did."""
        current = self._coordinator.current
        if current is None:
            return None
        view = self._view(current)
        moved = (view.phase, view.attempt, view.mode, view.deadline_clock_s)
        parts = tuple((r.state, r.places, r.staging) for r in view.ranks)
        signature = (*moved, parts, view.held_requests)
        if signature == self._told:
            return None
        if moved == self._told[: len(moved)] and now - self._told_at < _MIN_PROGRESS_S:
            return None
        self._told, self._told_at = signature, now
        for follower in self._followers:
            if follower.op_id == view.op_id:
                follower.queue.put_nowait(view)
        return view


def check_timeout(timeout_s: float) -> None:
    """Finite, not negative, bounded: the same rule on every route. Raises ProtocolError."""
    if not math.isfinite(timeout_s) or timeout_s < 0 or timeout_s > MAX_TIMEOUT_S:
        raise ProtocolError(
            ErrorCode.INVALID_ARGUMENT,
            f"timeout must be a finite number from 0 to {MAX_TIMEOUT_S:.0f}, got {timeout_s}",
        )

"""Updates that come in several parts, and the trainer groups that ranks are in.

One session at a time: begun, filled, ended; one that nobody goes on with lapses and leaves nothing.
A group is one that every rank has joined; as soon as that is not so, every rank leaves it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field

from engine.frontend.rank_calls import RankCalls
from engine.frontend.weight_files import WeightFiles
from engine.ipc.messages import Answered, DropTensors, JoinGroup, LeaveGroup, ReceiveTensors
from engine.protocol import ErrorCode, OperationKind, ProtocolError, TrainerGroup

LAPSE_S = 300.0
_LEAVE_S = 5.0
_PROCESS_START_S = 25.0  # a rank starts a process for each group, which imports torch
ALREADY_OPEN = "a weight-update session is already open; call end_weight_update() first"
STILL_COMING = "another part of this session is still coming"
NOT_OPEN = "no weight-update session is open; call begin_weight_update() first"


@dataclass(slots=True)
class Session:
    """One update in parts. `kind` is that of its first part; no `timer` while a part comes."""

    id: str
    owner: str
    lapse_s: float
    kind: OperationKind | None = None
    names: set[str] = field(default_factory=set)
    num_parts: int = 0
    bytes: int = 0
    weight_version: str | None = None
    timer: asyncio.TimerHandle | None = None


class WeightSessions:
    """All of one engine. Calls come from one event loop."""

    def __init__(self, files: WeightFiles, calls: RankCalls) -> None:
        self.files = files
        self.calls = calls
        self.current: Session | None = None
        self._groups: dict[str, Mapping[int, int]] = {}  # name → incarnations that joined
        self._joining: set[str] = set()
        self._tasks: set[asyncio.Task[object]] = set()
        self._leaving: dict[str, asyncio.Task[object]] = {}

    # ---- sessions ----------------------------------------------------------------------------

    def begin(self, owner: str, lapse_s: float) -> Session:
        """Open one. Raises ProtocolError when one is open."""
        if self.current is not None:
            raise ProtocolError(ErrorCode.INVALID_ARGUMENT, ALREADY_OPEN)
        session = Session(id=f"session-{secrets.token_hex(8)}", owner=owner, lapse_s=lapse_s)
        self.current = session
        self._touch(session)
        return session

    def part_of(self, kind: OperationKind, owner: str) -> Session | None:
        """The open session, for one more part of it; None when none is open. Raises ProtocolError.

        A part of another owner, of another kind, or beside one that is still coming is refused and
        changes nothing. The session waits until its part is `kept`, or it is abandoned.
        """
        session = self.current
        if session is None:
            return None
        self._check_turn(session, owner)
        if session.kind is not None and session.kind is not kind:
            raise ProtocolError(
                ErrorCode.INVALID_ARGUMENT, f"this session receives {session.kind}, not {kind}"
            )
        session.kind = kind
        self._stop_timer(session)
        return session

    def kept(self, session: Session) -> None:
        """The part that came is whole: from now on the session may lapse again."""
        if self.current is session:
            self._touch(session)

    def close(self, owner: str) -> Session:
        """Take the session out, to be carried out by the caller. Raises ProtocolError."""
        session = self.current
        if session is None:
            raise ProtocolError(ErrorCode.INVALID_ARGUMENT, NOT_OPEN)
        self._check_turn(session, owner)
        self._stop_timer(session)
        self.current = None
        return session

    def _check_turn(self, session: Session, owner: str) -> None:
        if session.owner and owner != session.owner:
            raise ProtocolError(
                ErrorCode.INVALID_ARGUMENT, f"this session belongs to {session.owner!r}"
            )
        if session.timer is None:
            raise ProtocolError(ErrorCode.INVALID_ARGUMENT, STILL_COMING)

    def reopen(self, session: Session) -> None:
        """Its end was refused: it can be asked for again, unless another one was begun."""
        if self.current is not None:
            self.abandon(session)
            return
        self.current = session
        self._touch(session)

    def abandon(self, session: Session) -> None:
        """A part of it was bad, or nobody came back: nothing of it is kept."""
        self._stop_timer(session)
        if self.current is session:
            self.current = None
        self.files.drop(session.id)
        if session.kind is OperationKind.UPDATE_WEIGHTS_FROM_DISTRIBUTED:
            drop = DropTensors(session=session.id)
            self._later(self.calls.ask(drop, timeout_s=_LEAVE_S))

    def _touch(self, session: Session) -> None:
        self._stop_timer(session)
        loop = asyncio.get_running_loop()
        session.timer = loop.call_later(session.lapse_s, self.abandon, session)

    def _stop_timer(self, session: Session) -> None:
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None

    # ---- groups ------------------------------------------------------------------------------

    async def join(self, group: TrainerGroup, dp_size: int, timeout_s: float) -> str:
        """Every rank joins, or none is in it. Returns why not, or nothing."""
        name = group.group_name
        if name in self._groups or name in self._joining:
            return f"group {name!r} exists; destroy it first"
        if group.rank_offset + dp_size > group.world_size:
            return (
                f"{dp_size} ranks from rank_offset {group.rank_offset} on do not fit a world of "
                f"{group.world_size}"
            )
        self._joining.add(name)
        try:
            if name in self._leaving:  # what was left must be left before it is joined again
                await asyncio.wait({self._leaving[name]})
            answers = await self.calls.ask(
                JoinGroup(group=group), timeout_s=timeout_s, grace_s=_PROCESS_START_S
            )
            why = told(answers, dp_size)
            if why:
                await self.leave(name)
            else:
                self._groups[name] = {answer.rank: answer.inc for answer in answers.values()}
        except asyncio.CancelledError:  # the caller left: nobody will ever use the group
            self._later(self.leave(name))
            raise
        finally:
            self._joining.discard(name)
        return why

    def has_group(self, name: str) -> bool:
        """Every rank is in it."""
        return name in self._groups

    async def leave(self, name: str) -> bool:
        """Every rank leaves it. False when there was none."""
        known = self._groups.pop(name, None) is not None
        await self.calls.ask(LeaveGroup(group_name=name), timeout_s=_LEAVE_S)
        return known

    async def receive(
        self, session: Session, question: ReceiveTensors, dp_size: int, timeout_s: float
    ) -> str:
        """One part, on every rank. Returns why not, or nothing; then the session is gone, and so is
        the group."""
        try:
            answers = await self.calls.ask(question, timeout_s=timeout_s)
        except BaseException:
            self.abandon(session)
            raise
        why = told(answers, dp_size)
        if why:
            self.abandon(session)
            await self.leave(question.group_name)
        else:
            first = next(iter(answers.values()))
            session.num_parts += 1
            session.bytes += first.bytes
            session.names |= set(question.names)
            self.kept(session)
        return why

    def failed(self, group_name: str) -> None:
        """An update through this group failed while it received: it is a group no more."""
        self._groups.pop(group_name, None)
        task = self._later(self.leave(group_name))
        self._leaving[group_name] = task
        task.add_done_callback(lambda _: self._leaving.pop(group_name, None))

    def on_processes(self, alive: Mapping[int, int]) -> None:
        """A group with a rank that is gone is a group no more."""
        for name, incs in list(self._groups.items()):
            if any(alive.get(rank) != inc for rank, inc in incs.items()):
                self.failed(name)

    def _later(self, work: Awaitable[object]) -> asyncio.Task[object]:
        async def run() -> object:
            return await work

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def told(answers: Mapping[int, Answered], dp_size: int) -> str:
    """What went wrong on which rank, or nothing."""
    errors = [f"rank {rank}: {a.error}" for rank, a in sorted(answers.items()) if a.error]
    errors += [f"rank {rank} is down" for rank in range(dp_size) if rank not in answers]
    return "; ".join(errors)

"""An engine without sockets: the real control server, operations, coordinator and rank machines.

Modelled are the journal's file, what a rank holds and how busy it is, and the way between frontend
and ranks, which loses nothing within an incarnation. Every effect on a rank is told to the world.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from engine.config import EngineConfig, OperationTimes
from engine.frontend.control_server import ControlServer
from engine.frontend.coordinator import Coordinator
from engine.frontend.event_log import EventLog
from engine.frontend.journal_records import (
    EpochRecord,
    Finished,
    Identity,
    JournalIndex,
    Noted,
    Record,
    Started,
)
from engine.frontend.new_state import new_state
from engine.frontend.operation_state import Ended, Kill, SendTo
from engine.frontend.operations import Operations
from engine.frontend.rank_table import RankTable
from engine.frontend.views import operation_view, rank_view
from engine.ipc.messages import RankStats, Report, Said, ServingState
from engine.protocol import (
    AbortRequests,
    EngineState,
    Extend,
    Force,
    Hello,
    Operation,
    Places,
    Progress,
    Reply,
    Request,
    Response,
    Submit,
    UpdateWeightsFromDisk,
    WeightSource,
    WeightsView,
    Welcome,
    encode_response,
)
from engine.protocol.events import EventBody
from engine.scheduler.participant import CommitFailedError, Effect, Participant, UndoFailedError
from tests.console.simulation.hub import check

if TYPE_CHECKING:
    from tests.console.simulation.world import World

TIMES = OperationTimes(heartbeat_s=1.0, resend_s=1.0, stage_s=60.0)
START = ServingState(weights=WeightsView(version="default", checksum="start"))
BUSY_TICK_S, IDLE_TICK_S = 0.5, 3.0
CONFIG = EngineConfig(
    model_path="/models/base", run_dir="", journal_path="", ext_cache_dir="", weights_dir="/own"
)


class MemoryJournal:
    """Durable across frontend deaths, like the file: `index` is rebuilt from the records."""

    def __init__(self, engine: SimEngine, engine_id: str) -> None:
        self.engine, self.engine_id = engine, engine_id
        self.records: list[Record] = []
        self.drop: tuple[type, ...] = ()
        self.reload()
        self.append(Identity(engine_id=engine_id))

    def reload(self) -> None:
        self.index = JournalIndex(initial=START, memo_size=self.engine.world.memo_size)
        for record in self.records:
            self.index.apply(record)

    def reserve(self) -> None:
        return

    def append(self, record: Record) -> None:
        world = self.engine.world
        if isinstance(record, Started):
            check(self.index.open is None, "an engine began a second operation")
            world.truth.began(self.engine, record)
        if not isinstance(record, self.drop):
            self.records.append(record)
            self.index.apply(record)
        if isinstance(record, Finished | Noted):
            world.truth.ended(self.engine, record.result)


class SimHost:
    """A rank's body: when it is idle, and what an operation does to it."""

    def __init__(self, rank: SimRank) -> None:
        self.rank = rank

    def places(self) -> Places:
        return Places(running=int(self.rank.is_busy))

    def stage(self, operation: Operation, new: ServingState) -> None:
        rank, world = self.rank, self.rank.engine.world
        op = rank.machine.op
        assert op is not None
        is_bad = isinstance(operation, UpdateWeightsFromDisk) and world.luck(0.1)
        seconds = world.rng.choice([0.1, 1, 4]) if op.parks and not is_bad else 0.0
        seconds = seconds if isinstance(operation, UpdateWeightsFromDisk) else 0.0
        weights = msgspec.structs.replace(new.weights, checksum=new.weights.checksum or "read")
        full = msgspec.structs.replace(new, weights=weights)

        def end() -> None:
            rank.machine.staged(op.id, "bad weights" if is_bad else "", full)
            rank.flush()

        world.hub.after(seconds, end)

    def staging(self) -> None:
        return None

    def unstage(self) -> None:
        return

    def retract_running(self) -> int:
        return self.abort_running("")

    def abort_running(self, message: str) -> int:
        count, self.rank.busy_until = int(self.rank.is_busy), 0.0
        return count

    def abort_all(self, message: str) -> None:
        self.rank.busy_until = 0.0

    def drop_requests(self) -> None:
        self.rank.busy_until = 0.0

    def commit(self, operation: Operation, new: ServingState) -> Effect:
        rank, world = self.rank, self.rank.engine.world
        if world.luck(0.1):
            raise CommitFailedError("scripted")
        assert rank.machine.op is not None
        world.truth.effect(rank, rank.machine.op.id, "new")
        return Effect()

    def undo(self, operation: Operation, old: ServingState) -> None:
        rank, world = self.rank, self.rank.engine.world
        if world.luck(0.3):
            raise UndoFailedError("scripted")
        assert rank.machine.op is not None
        world.truth.effect(rank, rank.machine.op.id, "old")

    def converge(self, desired: ServingState) -> None:
        rank = self.rank

        def end() -> None:
            rank.machine.converged(desired)
            rank.flush()

        rank.engine.world.hub.after(0.2, end)


class SimRank:
    """One rank process."""

    def __init__(self, engine: SimEngine, number: int, inc: int) -> None:
        self.engine, self.number, self.inc = engine, number, inc
        self.alive, self.busy_until = True, 0.0
        self.outbox: list[Said] = []
        self.machine = Participant(
            rank=number, inc=inc, host=SimHost(self), times=TIMES, say=self.outbox.append
        )

    @property
    def is_busy(self) -> bool:
        return self.busy_until > self.engine.world.hub.t

    def busy(self, seconds: float) -> None:
        """A request that runs for so long, if it is admitted."""
        if self.alive and self.machine.is_open:
            self.busy_until = max(self.busy_until, self.engine.world.hub.t + seconds)
            self.engine.world.hub.after(seconds, self.tick)

    def stats(self) -> RankStats:
        return RankStats(places=Places(running=int(self.is_busy)))

    def handle(self, message: Any) -> None:
        if self.alive and message.inc == self.inc:
            self.machine.handle(message, self.engine.world.hub.t)
            self.tick()

    def tick(self) -> None:
        if self.alive:
            self.machine.tick(self.engine.world.hub.t)
            if self.machine.report_due:
                self.report()
            self.flush()

    def report(self) -> None:
        machine = self.machine
        machine.report_due = False
        self.engine.hear(
            Report(
                rank=self.number,
                inc=self.inc,
                epoch=machine.epoch,
                n=machine.next_n(),
                view=machine.view(),
                lease_left_s=machine.lease_left_s(self.engine.world.hub.t),
                stats=self.stats(),
            )
        )

    def flush(self) -> None:
        said, self.outbox[:] = list(self.outbox), []
        for message in said:
            if self.alive:
                self.engine.hear(message)


class SimControl(ControlServer):
    """The real control server without its sockets."""

    def __init__(self, frontend: Front) -> None:  # not the base's: it would open sockets
        self._frontend: Any = frontend
        self._outstanding = collections.Counter()
        self._tasks = set()

    def publish(self, body: EventBody) -> None:
        return

    def serve(self, peer: bytes, request: Request) -> None:
        if isinstance(request.command, Submit):
            self._frontend.engine.world.spin(lambda: self._serve(peer, request))
        else:
            self._serve(peer, request)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _welcome(self, hello: Hello) -> Welcome:
        welcome = super()._welcome(hello)
        return msgspec.structs.replace(welcome, clock_s=self._frontend.engine.clock())

    def _send(self, peer: bytes, request_id: str, body: Progress | Reply) -> None:
        frame = encode_response(Response(id=request_id, body=body))
        self._frontend.engine.world.network.answer(self._frontend.engine, peer, frame)


class Front:
    """One frontend process: what engine.frontend.core.Frontend is to the control server."""

    def __init__(self, engine: SimEngine) -> None:
        self.engine, self.journal, self.config = engine, engine.journal, CONFIG
        self.config = msgspec.structs.replace(CONFIG, dp_size=len(engine.ranks))
        number = self.journal.index.epoch.number + 1 if self.journal.index.epoch else 1
        self.epoch = EpochRecord(number=number, nonce=f"{engine.world.rng.getrandbits(32):08x}")
        self.journal.append(self.epoch)
        self.events = EventLog(self.epoch.text)
        self.table = RankTable(epoch=number, index=self.journal.index)
        self.coordinator = Coordinator(
            dp_size=len(engine.ranks), ranks=self.table, times=TIMES, journal=self.journal
        )
        self.operations = Operations(
            coordinator=self.coordinator,
            journal=self.journal,
            times=TIMES,
            drive=self.drive,
            view=lambda current: operation_view(
                current,
                {rank.number: rank.stats() for rank in engine.ranks if rank.alive},
                now=engine.clock(),
                held=0,
            ),
            clock=engine.clock,
            new_state=_lead,
            to_abort=self._to_abort,
        )
        self.control = SimControl(self)
        self._is_driving = False

    def _to_abort(self, operation: AbortRequests) -> tuple[int, Callable[[], None]]:
        return 0, lambda: None

    def drive(self) -> None:
        """As Frontend.drive: let the coordinator go on as far as its inputs allow."""
        if self._is_driving:
            return
        self._is_driving = True
        engine, ended, quiet = self.engine, False, 0
        while quiet < 2:
            self.coordinator.on_processes({r.number: r.inc for r in engine.ranks if r.alive})
            actions = self.coordinator.step(engine.clock())
            for action in actions:
                match action:
                    case SendTo():
                        engine.to_rank(action.rank, action.message)
                    case Kill():
                        engine.kill_rank(engine.ranks[action.rank], action.inc)
                    case Ended():
                        ended = True
                        self.operations.ended(action.result)
            quiet = 0 if actions else quiet + 1
        self._is_driving = False
        if self.operations.tell_progress(engine.clock()) is not None or ended:
            engine.world.spin()

    def state(self) -> EngineState:
        now, desired = self.engine.clock(), self.journal.index.desired
        return EngineState(
            engine_id=self.journal.index.engine_id,
            epoch=self.epoch.text,
            seq=self.events.seq,
            clock_s=now,
            model=CONFIG.model_name,
            version="0",
            idle=not any(rank.is_busy for rank in self.engine.ranks),
            ranks=[
                rank_view(self.table, rank.number, rank.stats(), now=now, online_s=9.0)
                for rank in self.engine.ranks
            ],
            pending_operation=self.operations.pending(),
            held_requests=0,
            http_address="",
            weights=desired.weights,
        )


class SimEngine:
    """One engine: its journal, a frontend that may be down, and its ranks."""

    def __init__(self, world: World, name: str, dp_size: int) -> None:
        self.world, self.name = world, name
        self.offset_s = world.rng.uniform(0, 1e6)
        self._incs = self._journals = 0
        self.past: dict[str, MemoryJournal] = {}
        self.front: Front | None = None
        self.ranks: list[SimRank] = []
        self.new_journal()
        self.ranks = [self._rank(number) for number in range(dp_size)]
        self.front = Front(self)
        self._ticks = 0
        self.tick_soon()

    def clock(self) -> float:
        """The engine's monotonic clock."""
        return self.world.hub.t + self.offset_s

    def new_journal(self) -> None:
        """An engine with another identity, which remembers nothing."""
        self._journals += 1
        self.journal = MemoryJournal(self, f"{self.name}-{self._journals}")
        self.past[self.journal.engine_id] = self.journal

    def _rank(self, number: int) -> SimRank:
        self._incs += 1
        return SimRank(self, number, self._incs)

    # ---- time and messages -------------------------------------------------------------------

    def tick_soon(self) -> None:
        self._ticks += 1
        self.world.hub.after(0.01, lambda: self._tick(self._ticks))

    def _tick(self, number: int) -> None:
        if number != self._ticks:
            return
        is_busy = self.journal.index.open is not None
        if self.front is not None:
            is_busy = is_busy or not self.front.coordinator.is_ready
            is_busy = is_busy or not all(
                self.front.table.is_proven(rank.number) for rank in self.ranks
            )
        for rank in self.ranks:
            if rank.alive:
                rank.tick()
                rank.report()
        self.drive()
        pause_s = BUSY_TICK_S if is_busy else IDLE_TICK_S
        self.world.hub.after(pause_s, lambda: self._tick(number))

    def drive(self) -> None:
        if self.front is not None:
            self.front.drive()

    def to_rank(self, number: int, message: Any) -> None:
        rank = self.ranks[number]
        self.world.hub.after(self.world.ipc_delay_s(), lambda: rank.handle(message))

    def hear(self, message: Report | Said) -> None:
        """A rank speaks: at once, or some milliseconds later."""
        self.world.hub.after(self.world.ipc_delay_s(), lambda: self._heard(message))

    def _heard(self, message: Report | Said) -> None:
        if self.front is not None:
            self.front.coordinator.on_message(message, self.clock())
            self.front.drive()

    def serve(self, peer: bytes, request: Request) -> None:
        if self.front is not None:
            self.front.control.serve(peer, request)
            if isinstance(request.command, Submit):
                self.tick_soon()
            current = self.front.coordinator.current
            if current is not None and isinstance(request.command, Extend | Force):
                self.world.truth.moved(current.op_id, current.deadline - self.offset_s)

    # ---- faults ------------------------------------------------------------------------------

    def kill_rank(self, rank: SimRank, inc: int | None = None) -> None:
        if not rank.alive or (inc is not None and rank.inc != inc):
            return
        rank.alive = False
        self.world.stat["rank deaths"] += 1
        self.world.hub.after(self.world.rng.uniform(0.5, 8), lambda: self._born(rank.number))

    def _born(self, number: int) -> None:
        if not self.ranks[number].alive:
            self.ranks[number] = self._rank(number)
            self.tick_soon()

    def kill_front(
        self, down_s: float, *, lose_journal: bool = False, is_reboot: bool = False
    ) -> None:
        """The frontend dies; `launch` starts another one. Without its journal all ranks go too, and
        so they do when the host starts anew, whose clock then begins at its beginning."""
        if self.front is None:
            return
        self.front.control.close()
        self.world.spin()
        self.front = None
        self.world.stat["frontend deaths"] += 1
        if lose_journal or is_reboot:
            for rank in self.ranks:
                self.kill_rank(rank)
        if is_reboot:
            self.offset_s = -self.world.hub.t
            self.world.stat["reboots"] += 1
        if lose_journal:
            self.new_journal()
            self.world.stat["journals lost"] += 1
        self.world.hub.after(down_s, self._restart)

    def _restart(self) -> None:
        self.journal.reload()
        self.front = Front(self)
        self.tick_soon()

    def start_foreign(self, op_id: str, operation: Operation, mode: Any, timeout_s: float) -> None:
        """Somebody else asks over HTTP."""
        if self.front is not None:
            self.front.operations.submit(
                op_id=op_id, operation=operation, mode=mode, timeout_s=timeout_s
            )
            self.tick_soon()


def _lead(operation: Operation, old: ServingState, op_id: str) -> ServingState:
    """Where an operation leads; there are no folders here to look into."""
    if isinstance(operation, UpdateWeightsFromDisk):
        weights = WeightsView(
            version=operation.weight_version or "",
            source=WeightSource.DISK,
            path=operation.model_path,
        )
        return msgspec.structs.replace(old, weights=weights)
    return new_state(CONFIG, operation, old, op_id)

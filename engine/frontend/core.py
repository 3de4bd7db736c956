"""The frontend's heart: sockets to ranks and `launch`, the coordinator, requests, events.

HTTP and the control server call it; it calls nobody above. One event loop, no threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import zmq
import zmq.asyncio

from engine.config import EngineConfig
from engine.frontend.adoption import adopt, prepare_adoption
from engine.frontend.coordinator import Coordinator
from engine.frontend.dp_router import DPRouter
from engine.frontend.event_log import EventLog
from engine.frontend.journal import Journal
from engine.frontend.new_state import new_state
from engine.frontend.operation_state import Current, Ended, Kill, SendTo
from engine.frontend.operations import Operations
from engine.frontend.rank_calls import RankCalls
from engine.frontend.rank_socket import RankSocket
from engine.frontend.rank_table import RankTable
from engine.frontend.requests import RequestManager
from engine.frontend.storage_admin import StorageAdmin
from engine.frontend.views import operation_view, rank_view
from engine.frontend.weight_files import WeightFiles
from engine.frontend.weight_sessions import WeightSessions
from engine.ipc.messages import (
    Answered,
    AskProcesses,
    KillRank,
    Loading,
    RankStats,
    Ready,
    Report,
    Said,
    ServingState,
    Tokens,
    ToRankMessage,
)
from engine.ipc.wire import decode_from_rank, decode_processes, encode
from engine.log import get_logger
from engine.protocol import (
    WEIGHT_UPDATES,
    AbortRequests,
    EngineState,
    OperationChanged,
    OperationEnded,
    OperationKind,
    OperationResult,
    OperationView,
    Outcome,
    RankState,
    StateChanged,
    UpdateWeightsFromDistributed,
    UpdateWeightsFromTensor,
)
from engine.protocol.events import EventBody

log = get_logger()

VERSION = "0.1.0"
_TICK_S = 0.05
_STATE_S = 0.2
# After these a rank's cache holds nothing of what it was sent before.
_EMPTYING = WEIGHT_UPDATES | {OperationKind.FLUSH_CACHE, OperationKind.RELEASE_MEMORY}
_STEPS_AT_ONCE = 16


class Frontend:
    """State of the whole engine, as one process sees it."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.journal = Journal(config.journal_path, initial=ServingState())
        self.epoch = self.journal.begin_epoch()
        prepare_adoption(self.journal, config)
        self.events = EventLog(self.epoch.text)
        self.table = RankTable(epoch=self.epoch.number, index=self.journal.index)
        self.coordinator = Coordinator(
            dp_size=config.dp_size, ranks=self.table, times=config.times, journal=self.journal
        )
        self.router = DPRouter(config.dp_size)
        self.requests = RequestManager(
            router=self.router,
            page_size=config.page_size,
            max_held=config.max_held_requests,
            max_per_rank=config.max_running_requests + config.max_queued_requests,
            routable=self.routable,
            is_holding=lambda: self.coordinator.is_holding or not self.coordinator.is_ready,
            send=self._send_to_rank,
            epoch=self.epoch.number,
        )
        self.coordinator.num_held = lambda: self.requests.num_held
        self.files = WeightFiles(config)
        self.files.begin(self.kept_files())
        self.calls = RankCalls(
            epoch=self.epoch.number,
            send=self._send_to_rank,
            alive=self._reachable,
        )
        self.sessions = WeightSessions(self.files, self.calls)
        self.storage = StorageAdmin(config, self._states)
        self.operations = Operations(
            coordinator=self.coordinator,
            journal=self.journal,
            times=config.times,
            drive=self.drive,
            view=self._operation_view,
            accept=lambda operation: self.storage.accept(operation, self.journal.index.desired),
            new_state=lambda operation, old, op_id: new_state(config, operation, old, op_id),
            to_abort=self._to_abort,
            noted=lambda result: self.publish(OperationEnded(result=result)),
        )
        self.stats: dict[int, RankStats] = {}
        self.ready: dict[int, Ready] = {}
        self.loading: dict[int, Loading] = {}
        self.publish: Callable[[EventBody], None] = lambda _: None
        self._context = zmq.asyncio.Context()
        self._ranks = RankSocket(config.ranks_address)
        self._launch = self._context.socket(zmq.DEALER)
        self._launch.setsockopt(zmq.LINGER, 0)
        self._launch.connect(config.launch_address)
        self._state_told: tuple[object, ...] = ()
        self._state_told_at = 0.0
        self._state_seen_at = 0.0
        self._is_state_stale = True  # something came that may change it
        self._disk_fault_told = ""
        self._busy = False

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._ranks.run(self._on_rank_message))
            tasks.create_task(self._hear_launch())
            tasks.create_task(self._tick())

    def close(self) -> None:
        """Give sockets and journal up."""
        self._ranks.close()
        self._context.destroy(linger=0)
        self.journal.close()

    # ---- what others ask ---------------------------------------------------------------------

    @property
    def is_serving(self) -> bool:
        """Some rank may be sent requests, or will be as soon as an operation ends."""
        return self.coordinator.is_ready and any(
            self.table.is_proven(rank) for rank in range(self.config.dp_size)
        )

    def facts(self) -> Ready | None:
        """Limits of the model, from any rank that has told them."""
        return next(iter(self.ready.values()), None)

    def state(self) -> EngineState:
        """The engine now, for pages and APIs."""
        now, desired = time.monotonic(), self.journal.index.desired
        ranks = [
            rank_view(
                self.table,
                rank,
                self.stats.get(rank),
                now=now,
                online_s=self.config.times.online_s,
                config_hash=self.storage.expected_hash(desired.storage_backend, rank),
            )
            for rank in range(self.config.dp_size)
        ]
        return EngineState(
            engine_id=self.journal.index.engine_id,
            epoch=self.epoch.text,
            seq=self.events.seq,
            clock_s=now,
            model=self.config.model_name,
            version=VERSION,
            idle=all(rank.idle for rank in ranks) and self.requests.num_held == 0,
            ranks=ranks,
            pending_operation=self.operations.pending(),
            held_requests=self.requests.num_held,
            http_address=self.config.http_url or f"http://{self.config.host}:{self.config.port}",
            weights=desired.weights,
            weights_roots=self.files.roots(),
            paused=desired.paused,
            released=list(desired.released),
            needs_weights=desired.needs_weights,
            **self.storage.facts(desired),
        )

    def drive(self) -> None:
        """Let the coordinator go on as far as its inputs allow."""
        if self._busy:  # an action led back here; the loop below goes on anyway
            return
        self._busy = True
        try:
            quiet = 0
            for _ in range(_STEPS_AT_ONCE):
                actions = self.coordinator.step(time.monotonic())
                for action in actions:
                    match action:
                        case SendTo():
                            self._send_to_rank(action.rank, action.message)
                        case Kill():
                            log.warning("rank is silent", rank=action.rank, inc=action.inc)
                            self._launch.send(encode(KillRank(rank=action.rank, inc=action.inc)))
                        case Ended():
                            self._operation_ended(action.result)
                self._is_state_stale |= bool(actions)
                quiet = 0 if actions else quiet + 1
                if quiet == 2:
                    break
        finally:
            self._busy = False
        self.requests.pump()

    # ---- inputs ------------------------------------------------------------------------------

    def _on_rank_message(self, frame: bytes) -> None:
        message = decode_from_rank(frame)
        rank = message.rank
        match message:
            case Tokens():
                if message.epoch == self.epoch.number and self.table.lives(rank, message.inc):
                    self.requests.on_tokens(rank, message.inc, message.items)
            case Loading():
                self._is_state_stale = True
                self.loading[rank] = message
                log.info("rank loads", rank=rank, what=message.what, share=message.share)
            case Ready():
                self._is_state_stale = True
                self.ready[rank] = message
                self.loading.pop(rank, None)
                self._adopt()
            case Answered():
                if message.epoch == self.epoch.number:
                    self.calls.answered(message)
            case Report():
                self._is_state_stale = True
                if self.coordinator.on_message(message, time.monotonic()):
                    self._note_stats(rank, message.stats)
                self.drive()
            case Said():
                self._is_state_stale = True
                self.coordinator.on_message(message, time.monotonic())
                self.drive()

    def _adopt(self) -> None:
        """Nothing was recorded for this start: what the first rank was started with is served."""
        first = next(iter(self.ready.values()), None)
        if first is not None:
            adopt(self.journal, self.config, first.weights)

    def _note_stats(self, rank: int, stats: RankStats) -> None:
        before = self.stats.get(rank)
        self.stats[rank] = stats
        if stats.violation and (before is None or before.violation != stats.violation):
            log.error("pages do not add up", rank=rank, violation=stats.violation)

    async def _hear_launch(self) -> None:
        await self._launch.send(encode(AskProcesses()))
        while True:
            frame = await self._launch.recv()
            processes = decode_processes(frame)
            alive = {item.rank: item.inc for item in processes.ranks if item.alive}
            if alive != self.table.alive:
                self._is_state_stale = True
                self.coordinator.on_processes(alive)
                self.requests.on_processes(alive)
                self.calls.on_processes(alive)
                self.sessions.on_processes(alive)
            self.drive()

    async def _tick(self) -> None:
        """Time passes: deadlines, resends, progress, heartbeats."""
        asked_at = 0.0
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            self._adopt()
            self.drive()
            view = self.operations.tell_progress(now)
            if view is not None:
                self.publish(OperationChanged(operation=view))
            self._tell_state(now)
            self._tell_disk_fault()
            if now - asked_at > 1.0:
                asked_at = now
                self._launch.send(encode(AskProcesses()))

    def _tell_disk_fault(self) -> None:
        fault = self.coordinator.disk_fault
        if fault and fault != self._disk_fault_told:
            log.error("the end of an operation cannot be written, trying on", reason=fault)
        self._disk_fault_told = fault

    def _tell_state(self, now: float, *, is_news: bool = False) -> None:
        # Made up whenever something came, and else only as often as time alone may change it.
        if not is_news and not self._is_state_stale and now - self._state_seen_at < _STATE_S:
            return
        self._state_seen_at, self._is_state_stale = now, False
        state = self.state()
        signature: tuple[object, ...] = (
            state.idle,
            state.pending_operation is not None,
            tuple(
                (r.online, r.proven, r.idle, r.incarnation, r.weight_version) for r in state.ranks
            ),
            state.paused,
            state.released,
            state.needs_weights,
        )
        due = now - self._state_told_at >= self.config.times.heartbeat_s
        if signature != self._state_told or due:
            self._state_told, self._state_told_at = signature, now
            self.publish(StateChanged(state=state))

    # ---- outputs -----------------------------------------------------------------------------

    def routable(self) -> dict[int, int]:
        """Ranks that may be sent a request now, with their incarnations."""
        if not self.coordinator.is_ready:
            return {}
        now, online_s = time.monotonic(), self.config.times.online_s
        return {
            rank: self.table.alive[rank]
            for rank in range(self.config.dp_size)
            if self.table.is_routable(rank) and self.table.is_heard(rank, now, online_s)
        }

    def _reachable(self) -> dict[int, int]:
        """Ranks that have reported in this epoch: what is sent to them arrives."""
        alive = self.table.alive
        return {rank: inc for rank, inc in alive.items() if self.table.is_known(rank, inc)}

    def _send_to_rank(self, rank: int, message: ToRankMessage) -> None:
        # A rank that is not connected hears it again (operations) or is seen to be dead (requests).
        self._ranks.send(f"rank-{rank}-{message.inc}".encode(), encode(message))

    def _operation_view(self, current: Current) -> OperationView:
        return operation_view(
            current, self.stats, now=time.monotonic(), held=self.requests.num_held
        )

    def _operation_ended(self, result: OperationResult) -> None:
        log.info(
            "operation ended",
            op_id=result.op_id,
            kind=result.kind.value,
            outcome=result.outcome.value,
        )
        if result.kind in _EMPTYING and result.outcome in (Outcome.SUCCEEDED, Outcome.PARTIAL):
            for rank in result.ranks:
                if rank.state is RankState.SUCCEEDED:
                    self.requests.flushed(rank.dp_rank)
        self.operations.ended(result)
        self.publish(OperationEnded(result=result))
        self._tell_state(time.monotonic(), is_news=True)  # who reads the end may look at once
        if result.kind in WEIGHT_UPDATES:
            operation = self.operations.operation_of(result.op_id)
            if isinstance(operation, UpdateWeightsFromDistributed) and result.staged_s is None:
                self.sessions.failed(operation.group_name)  # who sends, and who receives, differ
            if isinstance(operation, UpdateWeightsFromTensor):
                self.files.dropped_unless(operation.upload_id, self.kept_files())
            before, kept = result.weights_before, self.kept_files()
            if before is not None and Path(before.path) not in kept:
                self.files.replaced(before.path)
            self.files.clear(keep=kept)

    @property
    def refusal(self) -> str:
        """Why no request can be taken, though ranks are there; nothing when they can."""
        desired = self.journal.index.desired
        if desired.released:
            return f"released: {', '.join(desired.released)}; resume it first"
        return "no weights are loaded; update them first" if desired.needs_weights else ""

    def kept_files(self) -> set[Path]:
        """Pushed weights that a rank may have to load again, those of an open operation too."""
        return {Path(state.weights.path) for state in self._states() if state.weights.path}

    def _states(self) -> list[ServingState]:
        """Those that a rank may have to take."""
        index = self.journal.index
        return [index.desired, *([index.open.old, index.open.new] if index.open else [])]

    def _to_abort(self, operation: AbortRequests) -> tuple[int, Callable[[], None]]:
        requests, message = self.requests, operation.message
        if operation.abort_all:
            return requests.num_active, lambda: _unused(requests.abort_all(message))
        count = int(requests.is_active(operation.rid))
        return count, lambda: _unused(requests.abort(operation.rid, message))


def _unused(_: object) -> None:
    """The count is known before."""

"""Coordinator, operations and real rank machines in one process, on a clock that tests move.

Messages are delivered at once; ranks are real Schedulers over FakeRunner. No socket, no sleep.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec

from engine.cache.attached import Opened
from engine.cache.keeper import StorageKeeper
from engine.cache.opening import Settings
from engine.cache.storage.guard import Guard
from engine.config import EngineConfig, OperationTimes
from engine.frontend.coordinator import Coordinator
from engine.frontend.journal_records import EpochRecord, Identity, JournalIndex, Record
from engine.frontend.new_state import new_state
from engine.frontend.operation_state import Ended, Kill, SendTo
from engine.frontend.operations import Follower, Operations
from engine.frontend.rank_table import RankTable
from engine.frontend.views import operation_view
from engine.ipc.messages import Report, ServingState
from engine.protocol import (
    FlushCache,
    Mode,
    Operation,
    OperationResult,
    UpdateWeightsFromDisk,
    WeightSource,
    WeightsView,
)
from engine.protocol.storage_configs import FileConfig
from engine.scheduler.control import RankHost
from engine.scheduler.effect_log import EffectLog, NoteEffect, nothing_recorded
from engine.scheduler.participant import Participant
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.stats import rank_stats
from tests.engine.scheduler.helpers import Seen, ask, make
from tests.fakes.runner import FakeRunner
from tests.fakes.storage import Script, ScriptedStorage, Shelf
from tests.fakes.weights import ScriptedWeights

START = WeightsView(version="default", checksum="start")


class MemoryJournal:
    """Durable enough for a test; `fail_next` makes the next append raise."""

    def __init__(self) -> None:
        self.index = JournalIndex(initial=ServingState(weights=START))
        self.records: list[Record] = []
        self.error: OSError | None = None
        self.append(Identity(engine_id="test-engine"))
        self.append(EpochRecord(number=1, nonce="x"))

    def reserve(self) -> None:
        if self.error:
            raise self.error

    def append(self, record: Record) -> None:
        if self.error:
            raise self.error
        self.records.append(record)
        self.index.apply(record)


def lead(operation: Operation, old: ServingState, op_id: str) -> ServingState:
    """Where an operation leads, on an engine whose only root is /models."""
    config = EngineConfig(
        model_path="/models/base",
        run_dir="",
        journal_path="",
        ext_cache_dir="",
        weights_dir="/own",
        hierarchical=True,
    )
    if isinstance(operation, UpdateWeightsFromDisk):
        weights = WeightsView(
            version=operation.weight_version or "",
            source=WeightSource.DISK,
            path=operation.model_path,
        )
        return msgspec.structs.replace(old, weights=weights)
    return new_state(config, operation, old, op_id)


class Backends:
    """One rank's storage keeper over a scripted store; `scripts` are those of the next opens."""

    def __init__(self, scheduler: Scheduler, shelf: Shelf) -> None:
        assert scheduler.tiers is not None
        self.tiers, self.shelf = scheduler.tiers, shelf
        self.scripts: list[Script] = []
        self.made: list[ScriptedStorage] = []
        self.keeper = StorageKeeper(
            scheduler.tiers,
            site=lambda: None,  # type: ignore[arg-type,return-value]
            read=lambda view: Settings(view, FileConfig(prefetch_threshold=1), view.config_id[:8]),
            opens=self._open,
            beside=lambda work: work(),
        )

    def _open(self, settings: Settings, site: object, payload_bytes: int, until: float) -> Opened:
        script = self.scripts.pop(0) if self.scripts else Script()
        storage = ScriptedStorage(shelf=self.shelf, script=script)
        storage.open(until)
        self.made.append(storage)
        guard = Guard(storage, payload_bytes=payload_bytes)
        return Opened(settings.view, settings.config, settings.config_hash, guard, b"i" * 16)

    @property
    def num_open(self) -> int:
        return sum(storage.is_open for storage in self.made)


RANKS: list[Rank] = []  # of the test that runs


class Rank:
    """One rank process, without the process."""

    def __init__(self, engine: Engine, number: int, inc: int) -> None:
        self.number, self.inc, self.alive, self.deaf = number, inc, True, False
        self.runner = FakeRunner(num_pages=128, context_len=400)
        self.runner.weights = START
        self.weights = ScriptedWeights(self.runner)
        self.scheduler: Scheduler = make(
            self.runner,
            is_open=lambda: self.machine.is_open,
            is_stopped=lambda: self.machine.is_stopped,
            host_pages=engine.host_pages,
        )
        self.storage = Backends(self.scheduler, engine.shelf) if engine.host_pages else None
        keeper = self.storage.keeper if self.storage is not None else None
        host = RankHost(self.scheduler, self.weights, keeper, engine.record(number, inc))
        self.machine = Participant(
            rank=number, inc=inc, host=host, times=engine.times, say=engine.inbox.append
        )
        host.participant = self.machine
        self.seen = Seen()
        self.heard: list[object] = []
        RANKS.append(self)

    def report(self, now: float) -> Report:
        self.machine.report_due = False
        return Report(
            rank=self.number,
            inc=self.inc,
            epoch=self.machine.epoch,
            n=self.machine.next_n(),
            view=self.machine.view(),
            lease_left_s=self.machine.lease_left_s(now),
            stats=rank_stats(self.scheduler, now),
        )


class Engine:
    """All of it; `advance` moves the clock."""

    def __init__(
        self, *, dp_size: int = 2, host_pages: int = 0, effect_log: Path | None = None
    ) -> None:
        self._effect_log = effect_log
        self.now = 1000.0
        self.host_pages, self.shelf = host_pages, Shelf()
        self.times = OperationTimes()
        self.inbox: list[object] = []
        self.journal = MemoryJournal()
        self.table = RankTable(epoch=1, index=self.journal.index)
        self.coordinator = Coordinator(
            dp_size=dp_size, ranks=self.table, times=self.times, journal=self.journal
        )
        self.operations = Operations(
            coordinator=self.coordinator,
            journal=self.journal,
            times=self.times,
            drive=self.settle,
            clock=lambda: self.now,
            view=lambda current: operation_view(
                current,
                {rank.number: rank_stats(rank.scheduler, self.now) for rank in self.ranks},
                now=self.now,
                held=0,
            ),
            new_state=lead,
        )
        self._incs = itertools.count(1)
        self.ranks = [Rank(self, number, next(self._incs)) for number in range(dp_size)]
        self.results: dict[str, OperationResult] = {}
        self.killed: list[int] = []
        self._settling = False
        self.settle()
        for _ in range(4):
            self.advance(0.5)
        assert self.coordinator.is_ready

    def record(self, rank: int, inc: int) -> NoteEffect:
        """Where a rank notes what it did."""
        if self._effect_log is None:
            return nothing_recorded
        return EffectLog(str(self._effect_log), rank=rank, inc=inc).record

    def settle(self) -> None:
        """Deliver until nobody has anything to say."""
        if self._settling:
            return
        self._settling = True
        quiet = 0
        for _ in range(60):
            self.coordinator.on_processes({r.number: r.inc for r in self.ranks if r.alive})
            for rank in self.ranks:
                if rank.alive and not rank.deaf:
                    rank.seen.take(rank.scheduler)
                    rank.machine.tick(self.now)
                    self.inbox.append(rank.report(self.now))
            messages, self.inbox[:] = list(self.inbox), []
            for message in messages:
                self.coordinator.on_message(message, self.now)  # type: ignore[arg-type]
            acted = False
            for action in self.coordinator.step(self.now):
                acted = True
                match action:
                    case SendTo():
                        rank = self.ranks[action.rank]
                        if rank.alive and not rank.deaf and rank.inc == action.message.inc:
                            rank.heard.append(action.message)
                            rank.machine.handle(action.message, self.now)
                    case Kill():
                        self.killed.append(action.rank)
                        self.ranks[action.rank].alive = False
                    case Ended():
                        self.results[action.result.op_id] = action.result
                        self.operations.ended(action.result)
            quiet = 0 if acted or self.inbox else quiet + 1
            if quiet == 3:
                break
        self._settling = False

    def advance(self, seconds: float) -> None:
        """Let time pass, in ticks."""
        for _ in range(max(1, round(seconds / 0.05))):
            self.now += seconds / max(1, round(seconds / 0.05))
            self.settle()

    def flush(
        self,
        op_id: str,
        timeout_s: float = 0.0,
        mode: Mode = Mode.WAIT,
        start_by: float | None = None,
    ) -> Follower:
        return self.operations.submit(
            op_id=op_id,
            operation=FlushCache(),
            mode=mode,
            timeout_s=timeout_s,
            start_by=start_by,
        )

    def submit(
        self, op_id: str, operation: Operation, mode: Mode = Mode.WAIT, timeout_s: float = 0.0
    ) -> Follower:
        return self.operations.submit(
            op_id=op_id, operation=operation, mode=mode, timeout_s=timeout_s
        )

    def update(
        self,
        op_id: str,
        path: str = "/models/new",
        mode: Mode = Mode.RETRACT,
        timeout_s: float = 0.0,
        flush_cache: bool = True,
    ) -> OperationResult | None:
        """An update from disk, followed to its end if it ends by itself."""
        operation = UpdateWeightsFromDisk(model_path=path, flush_cache=flush_cache)
        self.submit(op_id, operation, mode, timeout_s)
        self.settle()
        return self.results.get(op_id)

    def busy(self, rank: int = 0, rid: str = "busy", max_new: int = 300) -> None:
        """A generation that runs until `finish`."""
        ask(self.ranks[rank].scheduler, rid, [1, 2, 3], max_new)
        self.ranks[rank].scheduler.step(self.now)

    def finish(self, rank: int = 0) -> None:
        """Run a rank's requests to their end."""
        scheduler = self.ranks[rank].scheduler
        while scheduler.has_work:
            scheduler.step(self.now)
            self.ranks[rank].seen.take(scheduler)
        self.ranks[rank].seen.take(scheduler)
        while scheduler.tiers is not None and not scheduler.places().is_idle:
            scheduler.tiers.poll()  # copies run on a thread
        self.settle()

    def restart_rank(self, number: int) -> None:
        self.ranks[number] = Rank(self, number, next(self._incs))

    def flushes(self) -> list[int]:
        """How often each rank's KV was really cleared."""
        return [rank.runner.cleared for rank in self.ranks]

    def states(self, op_id: str) -> Sequence[str]:
        return [rank.state.value for rank in self.results[op_id].ranks]

"""A seeded world around the real coordinator and the real rank machine.

Messages are lost, doubled, delayed and reordered; processes are killed or stopped around every
durable write and restarted. Time is fake and one random generator decides everything: a seed is a
whole history. `Violation` names the first promise that was broken.
"""

from __future__ import annotations

import collections
import random
from dataclasses import dataclass, field

import msgspec

from engine.config import OperationTimes
from engine.frontend.coordinator import Coordinator
from engine.frontend.journal_records import (
    Decided,
    EpochRecord,
    Finished,
    Identity,
    JournalIndex,
    Record,
)
from engine.frontend.operation_state import Current, Ended, Kill, SendTo, Verdict
from engine.frontend.outcomes import RankEnd
from engine.frontend.rank_table import RankTable
from engine.ipc.messages import Commit, RankPhase, RankStats, Report, Said, ServingState, Word
from engine.protocol import (
    AttachStorage,
    ClearStorage,
    DetachStorage,
    FlushCache,
    Mode,
    Operation,
    OperationKind,
    Outcome,
    Places,
    ProtocolError,
    ReleaseMemory,
    Repair,
    StorageBackend,
    StorageView,
    UpdateWeightsFromDisk,
    UpdateWeightVersion,
    WeightsView,
)
from engine.scheduler.participant import CommitFailedError, Effect, Participant, UndoFailedError

TIMES = OperationTimes(
    heartbeat_s=3.0, margin_s=2.0, budget_s=14.0, resend_s=2.0, stage_s=60.0, silent_s=40.0
)
# One of each way through the protocol: no state, a state after parking, after long staging, and
# beside serving; the one whose ranks all tell why they refuse.
OPERATIONS: tuple[Operation, ...] = (
    FlushCache(),
    ReleaseMemory(),
    UpdateWeightsFromDisk(model_path="/models/new"),
    UpdateWeightVersion(new_version="named"),
    AttachStorage(backend=StorageBackend.FILE, replace=True),
    DetachStorage(),
    DetachStorage(force=True),
    ClearStorage(),
)
UNCHANGING = frozenset(
    {OperationKind.FLUSH_CACHE, OperationKind.REPAIR, OperationKind.CLEAR_STORAGE_BACKEND}
)
HELD_MAX = 30


def state(version: str) -> ServingState:
    """A state that is known by its checksum."""
    return ServingState(weights=WeightsView(version=version, checksum=version))


class Violation(AssertionError):
    """A promise was broken."""


def check(ok: object, text: str) -> None:
    if not ok:
        raise Violation(text)


@dataclass
class Request:
    left: int
    epoch: int
    ends: list[str] = field(default_factory=list)
    kv: str | None = None  # checksum of the weights that its KV was made with


@dataclass
class Guards:
    """Which classes to drive; a mutant swaps one for a weakened subclass."""

    participant: type[Participant] = Participant
    table: type[RankTable] = RankTable
    coordinator: type[Coordinator] = Coordinator
    drop_records: tuple[type, ...] = ()


class MemoryJournal:
    """Durable across frontend deaths, like the file; an append is one fdatasync."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.records: list[Record] = []
        self.index = JournalIndex(initial=state("first"))
        self.append(Identity(engine_id="sim"))

    def reserve(self) -> None:
        return

    def append(self, record: Record) -> None:
        if isinstance(record, self.world.guards.drop_records):
            return
        self.world.last_write = self.world.t
        self.records.append(record)
        self.index.apply(record)
        if isinstance(record, Finished):
            self.world.on_finished(record)


class SimHost:
    """A rank's body: requests that count down, and an operation's effects, by operation number."""

    def __init__(self, world: World, rank: SimRank) -> None:
        self.world, self.rank = world, rank

    def places(self) -> Places:
        return Places(running=len(self.rank.running), waiting=len(self.rank.waiting))

    def stage(self, operation: Operation, new: ServingState) -> None:
        op = self.rank.machine.op
        assert op is not None
        check(op.id not in self.world.ended_ops, "prepared for an ended operation")
        self.rank.staging_left = self.world.rng.choice([1, 1, 2, 40])

    def staging(self) -> None:
        return None

    def unstage(self) -> None:
        self.rank.staging_left = 0

    def retract_running(self) -> int:
        count = len(self.rank.running)
        self.rank.waiting = self.rank.running + self.rank.waiting
        self.rank.running = []
        return count

    def abort_running(self, message: str) -> int:
        count = len(self.rank.running)
        self._end(self.rank.running, message)
        self.rank.running = []
        return count

    def abort_all(self, message: str) -> None:
        self._end(self.rank.running + self.rank.waiting, message)
        self.rank.running, self.rank.waiting = [], []

    def _end(self, rids: list[int], why: str) -> None:
        for rid in rids:
            self.world.end_request(rid, f"abort: {why}")

    def drop_requests(self) -> None:
        self.rank.running, self.rank.waiting = [], []

    def commit(self, operation: Operation, new: ServingState) -> Effect:
        op = self.rank.machine.op
        assert op is not None
        self.world.on_effect(self.rank, op.id, "new")
        self.rank.busy_until = self.world.t + self.world.commit_time()
        if self.world.rng.random() < 0.2:
            raise CommitFailedError("scripted")
        self.rank.effects[op.id] = "new"
        return Effect()

    def undo(self, operation: Operation, old: ServingState) -> None:
        op = self.rank.machine.op
        assert op is not None
        self.world.on_effect(self.rank, op.id, "old")
        if self.world.rng.random() < 0.4:
            raise UndoFailedError("scripted")
        self.rank.effects[op.id] = "old"

    def converge(self, desired: ServingState) -> None:
        self.rank.busy_until = self.world.t + self.world.rng.uniform(0.2, 3)
        self.world.truth.pop(self.rank.k, None)
        luck = self.world.rng.random()
        if luck < 0.1:
            self.rank.machine.converged(desired, "scripted")
        elif luck < 0.5:
            self.rank.converging = desired
        else:
            self.rank.machine.converged(desired)


class SimRank:
    """One rank process."""

    def __init__(self, world: World, k: int, inc: int) -> None:
        self.world, self.k, self.inc = world, k, inc
        self.alive = True
        self.stopped_until = self.busy_until = self.beat = self.up_at = 0.0
        self.staging_left = 0
        self.inbox: list[object] = []
        self.outbox: list[Said | Report] = []
        self.converging: ServingState | None = None
        self.running: list[int] = []
        self.waiting: list[int] = []
        self.effects: dict[int, str] = {}
        self.machine = world.guards.participant(
            rank=k, inc=inc, host=SimHost(world, self), times=TIMES, say=self.outbox.append
        )

    def report(self) -> None:
        machine = self.machine
        self.beat, machine.report_due = self.world.t, False
        self.outbox.append(
            Report(
                rank=self.k,
                inc=self.inc,
                epoch=machine.epoch,
                n=machine.next_n(),
                view=machine.view(),
                lease_left_s=machine.lease_left_s(self.world.t),
                stats=RankStats(places=SimHost(self.world, self).places()),
            )
        )

    def step(self) -> None:
        world, machine = self.world, self.machine
        if self.busy_until > world.t:
            return
        if self.inbox:
            message = self.inbox.pop(0)
            if isinstance(message, tuple):
                self._admit_later(*message)
            else:
                op = machine.op
                parked = op is not None and op.phase is RankPhase.PARKED
                if isinstance(message, Commit) and op and parked and message.op == op.id:
                    check(message.att == op.att, "COMMIT for another attempt")
                machine.handle(message, world.t)  # type: ignore[arg-type]
        if self.busy_until <= world.t:
            if self.converging is not None and world.rng.random() < 0.3:
                desired, self.converging = self.converging, None
                machine.converged(desired)
            machine.tick(world.t)
            self._serve()
            self._stage()
        if machine.report_due or world.t - self.beat > TIMES.heartbeat_s:
            self.report()
        if self.busy_until <= world.t:
            self.flush_outbox()

    def flush_outbox(self) -> None:
        for said in self.outbox:
            self.world.send("F", said)
        self.outbox.clear()

    def _admit_later(self, rid: int, epoch: int) -> None:
        if epoch < self.machine.epoch:
            return
        if self.machine.fenced:
            self.world.end_request(rid, "abort: fenced")
        else:
            self.waiting.append(rid)

    def _serve(self) -> None:
        world, machine = self.world, self.machine
        while machine.is_open and self.waiting and len(self.running) < 3:
            request = world.requests[self.waiting[0]]
            check(
                machine.state == world.journal.index.desired,
                "served by a rank whose state nobody confirmed",
            )
            check(request.epoch == machine.epoch, "work for a frontend that is gone")
            request.kv = machine.state.weights.checksum
            self.running.append(self.waiting.pop(0))
        op = machine.op
        parking = op is not None and (op.phase is RankPhase.PARKING or not op.parks)
        check(machine.is_open or not self.running or parking, "requests run on a closed rank")
        for rid in list(self.running):
            request = world.requests[rid]
            state_now = machine.state
            is_own = state_now is not None and request.kv == state_now.weights.checksum
            check(is_own, "KV of one state read by another")
            request.left -= 1
            if request.left <= 0:
                self.running.remove(rid)
                world.end_request(rid, "stop")

    def _stage(self) -> None:
        op = self.machine.op
        if op is None or op.phase is not RankPhase.STAGING:
            return
        self.staging_left -= 1
        if self.staging_left <= 0:
            self.machine.staged(op.id, "bad" if self.world.rng.random() < 0.06 else "")


class Front:
    """One frontend process: the coordinator and its held requests."""

    def __init__(self, world: World, epoch: int) -> None:
        self.world, self.epoch, self.born = world, epoch, world.t
        self.table = world.guards.table(epoch=epoch, index=world.journal.index)
        self.coordinator = world.guards.coordinator(
            dp_size=world.n, ranks=self.table, times=TIMES, journal=world.journal
        )
        finish = self.coordinator._finish

        def noted(current: Current, outcome: Outcome, ends: dict[int, RankEnd], desired: object):  # type: ignore[no-untyped-def]
            world.ends[current.op] = (dict(ends), dict(current.incs))
            return finish(current, outcome, ends, desired)  # type: ignore[arg-type]

        self.coordinator._finish = noted  # type: ignore[method-assign]
        look = self.coordinator._look

        def looked(current: Current, word: Word) -> Verdict | None:
            verdict = look(current, word)
            if verdict is Verdict.EXPIRED and word is Word.PARKED:
                parked = Coordinator._having(self.coordinator, current, word)
                idle = len(parked) == world.n and self.coordinator._may_start(current)
                check(not idle, "expired although every rank was idle")
            return verdict

        self.coordinator._look = looked  # type: ignore[method-assign]
        self.inbox: list[Said | Report] = []
        self.held: list[int] = []
        self.routed: dict[int, tuple[int, int]] = {}
        self.stopped_until = self.idle_s = 0.0

    def pump(self) -> None:
        self.coordinator.on_processes({r.k: r.inc for r in self.world.ranks if r.alive})
        for message in self.inbox:
            self.coordinator.on_message(message, self.world.t)
        self.inbox.clear()

    def step(self) -> None:
        for action in self.coordinator.step(self.world.t):
            if isinstance(action, SendTo):
                self.world.send(action.rank, action.message)
            elif isinstance(action, Kill):
                rank = self.world.ranks[action.rank]
                if rank.alive and rank.inc == action.inc:
                    self.world.kill_rank(rank)
            elif isinstance(action, Ended):
                self.world.on_reply(action)

    def route(self) -> None:
        world, coordinator = self.world, self.coordinator
        for rid, (k, inc) in list(self.routed.items()):
            if not (world.ranks[k].alive and world.ranks[k].inc == inc):
                world.end_request(rid, "rank lost")
        ready = [k for k in range(world.n) if self._may_route(k)]
        while self.held and ready and not coordinator.is_holding:
            k = world.rng.choice(ready)
            rid = self.held.pop(0)
            rank = world.ranks[k]
            if rank.alive:
                # Another name for the same weights is no other state: it waits there for the end.
                state_now, desired = rank.machine.state, world.journal.index.desired
                is_same = (
                    state_now is not None and state_now.weights.checksum == desired.weights.checksum
                )
                check(is_same, "traffic to a rank in another state")
            self.routed[rid] = (k, rank.inc)
            if rank.alive:
                rank.inbox.append((rid, self.epoch))

    def _may_route(self, k: int) -> bool:
        return self.coordinator.is_ready and self.table.is_routable(k)


class World:
    """Everything, for one seed."""

    def __init__(self, seed: int, n: int, guards: Guards | None = None) -> None:
        self.guards = guards or Guards()
        self.rng, self.n, self.t, self.chaos = random.Random(seed), n, 0.0, True
        self.net: list[tuple[float, object, object]] = []
        self.stat: collections.Counter[str] = collections.Counter()
        self.requests: list[Request] = []
        self.replies: dict[str, bytes] = {}
        self.ends: dict[int, tuple[dict[int, RankEnd], dict[int, int]]] = {}
        self.truth: dict[int, tuple[int, ServingState]] = {}
        self.ended_ops: set[int] = set()
        self.finished: list[Finished] = []
        self.last_write = -99.0
        self.leases: dict[tuple[int, int, int], float] = {}
        self.ended_at = -99.0
        self.epochs = self.next_inc = self.next_id = 0
        self.journal = MemoryJournal(self)
        self.front: Front | None = None
        self.front_up_at = 0.0
        self.ranks: list[SimRank] = []
        for k in range(n):
            self.ranks.append(self._new_rank(k))

    # ---- network and supervisor --------------------------------------------------------------

    def send(self, dst: object, message: object) -> None:
        copies = 1 + (self.chaos and self.rng.random() < 0.08)
        for _ in range(copies):
            if self.chaos and self.rng.random() < 0.08:
                continue
            delay = self.rng.choice([0, 0, 0, 0, 0, 0.3, 1, 3, 8, 15]) if self.chaos else 0
            wire = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message))
            self.net.append((self.t + delay, dst, wire))

    def _deliver(self) -> None:
        due = [x for x in self.net if x[0] <= self.t]
        self.net = [x for x in self.net if x[0] > self.t]
        self.rng.shuffle(due)
        for _, dst, message in due:
            if dst == "F":
                if self.front:
                    self.front.inbox.append(message)  # type: ignore[arg-type]
            elif self.ranks[dst].alive:  # type: ignore[index]
                self.ranks[dst].inbox.append(message)  # type: ignore[index]

    def _new_rank(self, k: int) -> SimRank:
        self.next_inc += 1
        return SimRank(self, k, self.next_inc)

    def kill_rank(self, rank: SimRank) -> None:
        rank.alive, rank.up_at = False, self.t + self.rng.uniform(2, 15)
        self.stat["rank deaths"] += 1

    def _start_front(self) -> None:
        self.epochs += 1
        self.journal.append(EpochRecord(number=self.epochs, nonce="sim"))
        self.front = Front(self, self.epochs)

    def _kill_front(self) -> None:
        for request in self.requests:
            request.ends = request.ends or ["connection lost"]
        self.front = None
        self.front_up_at = self.t + self.rng.choice([1, 5, 20, 50, 90])
        self.stat["frontend deaths"] += 1

    # ---- requests ----------------------------------------------------------------------------

    def end_request(self, rid: int, why: str) -> None:
        front = self.front
        if front is None or front.routed.pop(rid, None) is None:
            return
        self.requests[rid].ends.append(why)
        check(len(self.requests[rid].ends) == 1, "a request finished twice")

    # ---- what must hold ----------------------------------------------------------------------

    def commit_time(self) -> float:
        return self.rng.choice([0, 0, 0, 0.3, 0.5, 1, 4, 28 if self.chaos else 4])

    def on_effect(self, rank: SimRank, op: int, what: str) -> None:
        current = rank.machine.op
        parks = current is None or current.parks
        check(not (parks and rank.machine.is_open), "state changed while open to requests")
        check(op not in self.ended_ops, "an effect after the end was recorded")
        if what == "new":
            decided = any(isinstance(r, Decided) and r.op == op for r in self.journal.records)
            check(decided, "COMMIT without a recorded decision")

    def on_finished(self, record: Finished) -> None:
        check(record.op not in self.ended_ops, "finished twice")
        self.ended_ops.add(record.op)
        self.finished.append(record)
        self.ended_at = self.t
        ends, incs = self.ends.get(record.op, ({}, {}))
        outcome = record.result.outcome
        self.stat[outcome] += 1
        check(
            outcome is not Outcome.SUCCEEDED or set(ends.values()) == {RankEnd.NEW},
            "SUCCEEDED without every rank",
        )
        self.truth = {}
        self.stat[record.result.kind] += 1
        if record.result.kind is OperationKind.REPAIR:
            self._on_repaired(record, ends)
            return
        for k, inc in incs.items():
            rank = self.ranks[k]
            if not rank.alive or rank.inc != inc:
                continue
            told = rank.effects.get(record.op, "old")
            check(ends[k].value == told, f"{outcome} names a false rank state")
            unchanged = outcome in (Outcome.FAILED, Outcome.EXPIRED, Outcome.CANCELLED)
            check(not unchanged or told == "old", f"{outcome} but a rank changed")
            if rank.machine.state is not None:
                self.truth[k] = (inc, rank.machine.state)

    def _on_repaired(self, record: Finished, ends: dict[int, RankEnd]) -> None:
        """A rank that is called repaired serves what is desired."""
        for k, end in ends.items():
            rank = self.ranks[k]
            if end is RankEnd.NEW and rank.alive:
                is_right = rank.machine.state in (record.desired, None)
                check(is_right, "a repaired rank is not as it should be")

    def on_reply(self, ended: Ended) -> None:
        result = ended.result
        recorded = self.journal.index.results.get(result.op_id)
        check(recorded is not None, "replied before the end was recorded")
        check(recorded == result, "reply differs from the journal")

    def _audit(self) -> None:
        front, index = self.front, self.journal.index
        for rank in self.ranks:
            op = rank.machine.op
            fresh = rank.alive and rank.stopped_until < self.t - 2 and rank.busy_until < self.t - 2
            if op and fresh and op.phase in (RankPhase.PARKING, RankPhase.PARKED):
                last = max(op.lease_until, rank.stopped_until, rank.busy_until)
                check(self.t < last + 4, "parked beyond its lease")
                first = self.leases.setdefault((rank.inc, op.id, op.att), op.lease_until)
                check(op.lease_until <= first, "a late copy lengthened the lease")
            if op and fresh and front and op.id in self.ended_ops and not rank.machine.is_open:
                since = max(
                    op.lease_until,
                    self.ended_at,
                    front.born,
                    front.stopped_until,
                    rank.stopped_until,
                    rank.busy_until,
                )
                check(self.t < since + 40, "left closed after the end")
            inc, said = self.truth.get(rank.k, (0, None))
            unchanged = not rank.alive or rank.inc != inc or rank.machine.state == said
            check(index.open or unchanged, "state changed after the end was recorded")
        if front and front.coordinator.is_holding:
            current = front.coordinator.current
            check(current, "held although nothing is pending")
            assert current is not None
            deadline = max(front.stopped_until, current.deadline + front.idle_s)
            limit = deadline + TIMES.grace_s + 4 * TIMES.budget_s
            check(self.t < limit, "held beyond lease and grace")

    # ---- the world acts ----------------------------------------------------------------------

    def submit(self) -> None:
        front, rng = self.front, self.rng
        if front is None:
            return
        old = self.journal.index.desired
        operation = rng.choice(OPERATIONS)
        fenced = any(rank.alive and rank.machine.fenced for rank in self.ranks)
        if fenced and rng.random() < 0.5:
            operation = Repair()
        new = old if operation.kind in UNCHANGING else state(str(rng.randrange(10**6)))
        if operation.kind is OperationKind.UPDATE_WEIGHT_VERSION:  # the weights stay
            named = msgspec.structs.replace(new.weights, checksum=old.weights.checksum)
            new = ServingState(weights=named)
        if isinstance(operation, AttachStorage | DetachStorage):  # so they do
            view = None
            if isinstance(operation, AttachStorage):
                view = StorageView(backend=operation.backend, config_id=f"{self.next_id:016x}")
            new = msgspec.structs.replace(old, storage_backend=view)
        timeout_s = rng.choice([0, 4, 15, 30, 60])
        self.next_id += 1
        current = Current(
            op=0,
            op_id=f"op-{self.next_id}",
            operation=operation,
            mode=rng.choice(list(Mode)),
            att=1,
            timeout_s=timeout_s,
            patience_s=timeout_s,
            started_at=self.t,
            deadline=self.t + timeout_s,
            start_by=self.t + timeout_s,
            incs={},
            old=old,
            new=new,
        )
        busy = self.journal.index.open is not None or front.coordinator.current is not None
        try:
            front.coordinator.now = self.t
            front.coordinator.submit(current)
        except ProtocolError as error:
            self.stat[f"refused: {error.code}"] += 1
        else:
            check(not busy, "two exclusive operations")

    def _client(self) -> None:
        front, x = self.front, self.rng.random
        if x() < 0.12:
            self.requests.append(Request(left=self.rng.randint(1, 12), epoch=self.epochs))
            if not front or not front.coordinator.is_ready or len(front.held) >= HELD_MAX:
                self.requests[-1].ends.append("refused")
            else:
                front.held.append(len(self.requests) - 1)
        if x() < 0.04:
            self.submit()
        self._restart_fenced()
        if front and front.coordinator.current:
            for chance, act in (
                (0.004, front.coordinator.cancel),
                (0.006, front.coordinator.force),
                (0.008, lambda: front.coordinator.extend(5.0)),
            ):
                if x() < chance:
                    try:
                        act()
                    except ProtocolError as error:
                        self.stat[f"refused: {error.code}"] += 1

    def _restart_fenced(self) -> None:
        """What an operator does with a rank that could not take the desired state."""
        for rank in self.ranks:
            if rank.alive and rank.machine.fenced and self.rng.random() < 0.03:
                self.kill_rank(rank)

    def _faults(self) -> None:
        near = self.t - self.last_write < 1
        aim = 12 if near else 2 if self.journal.index.open else 1
        x, front = self.rng.random() / aim, self.front
        if x < 0.0015 and front:
            self._kill_front()
            if self.rng.random() < 0.2:
                for rank in self.ranks:
                    if rank.alive:
                        self.kill_rank(rank)
        elif x < 0.0025:
            rank = self.rng.choice(self.ranks)
            if rank.alive:
                self.kill_rank(rank)
        elif x < 0.005:
            target = self.rng.choice([front, *self.ranks])
            span = self.rng.choice([3, 10, 60])
            if target is not None:
                target.stopped_until = self.t + span
                if isinstance(target, Front):
                    target.idle_s += span

    def step(self) -> None:
        self.t += self.rng.choice([0.1, 0.3, 0.5])
        self._deliver()
        self._client()
        if self.chaos:
            self._faults()
        if self.front is None and self.t >= self.front_up_at:
            self._start_front()
        for k, rank in enumerate(self.ranks):
            if not rank.alive and self.t >= rank.up_at:
                self.ranks[k] = self._new_rank(k)
        actors = [self.front, *self.ranks]
        for actor in self.rng.sample(actors, len(actors)):
            if actor is None or actor.stopped_until > self.t:
                continue
            if isinstance(actor, Front):
                actor.pump()
                actor.step()
                actor.pump()
                actor.route()
            elif actor.alive and actor is self.ranks[actor.k]:
                actor.step()
        self._audit()

    def run(self) -> None:
        for i in range(2000):
            self.chaos = i < 1400
            if i == 1700:
                self._client = self._restart_fenced  # type: ignore[method-assign]
            if i == 1850:  # whoever was restarted has time to come up
                self._client = lambda: None  # type: ignore[method-assign]
            self.step()
        check(self.journal.index.open is None, "an operation never ended")
        check(all(len(q.ends) == 1 for q in self.requests), "a request never finished")
        for rank in self.ranks:
            fenced = rank.machine.fenced
            settled = rank.machine.op is None and rank.machine.state == self.journal.index.desired
            check(rank.alive and (settled or fenced), "a rank never came to rest")
        self.stat["requests"] += len(self.requests)
        self.stat["ended"] += len(self.finished)

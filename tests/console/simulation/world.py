"""Everything, for one seed: the console's own code behind simulated seams."""

from __future__ import annotations

import asyncio
import collections
import logging
import random
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from unittest.mock import patch
from uuid import UUID

from console import dispatch, notify, redis_away, snapshots
from console.choices import TERMINAL_STATES
from console.clock import clock_used
from console.gateways import registry
from console.services import jobs
from console.tasks import carry
from engine.protocol import FlushCache, Mode, ProtocolError
from tests.console.simulation.actors import (
    Person,
    admin_lives,
    kept_alive,
    person_lives,
    reconciler_lives,
    worker_lives,
)
from tests.console.simulation.database import Injected, Store
from tests.console.simulation.engine import SimEngine
from tests.console.simulation.hub import START, Hub, Process, SimClock, check
from tests.console.simulation.network import SimBroker, SimGateway, SimNetwork, SimRedis
from tests.console.simulation.truth import Truth

ENGINES = ("one", "two", "three", "four")  # as Store has them
WORKERS = 5
CHAOS_S = 110.0
LATEST_S = 20.0  # what was sent in the chaos arrives by then
LIMIT_S = 900.0
_TERMINAL = ",".join(f"'{state}'" for state in sorted(TERMINAL_STATES))


class World:
    """One history. `chaos` False makes a quiet one, for directed tests to disturb."""

    def __init__(self, seed: int, store: Store, *, chaos: bool = True, asks: int = 180) -> None:
        store.reset()
        self.db = store.db
        self.hub = Hub(seed)
        self.rng: random.Random = self.hub.rng
        self.chaos = chaos
        self.stat: collections.Counter[str] = collections.Counter()
        self.memo_size = 10_000
        self.roleless_since_s: dict[int, float] = {}  # by whose role was taken
        self.calm_at = CHAOS_S if chaos else 0.0
        self.settle_s = 50.0
        self.is_closing = False
        self.in_hand = 0  # doorbells that a worker is at
        self.drawn: dict[str, tuple[dict[str, object], str, object]] = {}
        self.processes: list[Process] = []
        self.clock = SimClock(self.hub)
        self.network = SimNetwork(self)
        self.broker = SimBroker(self)
        self.redis = SimRedis(self)
        self.truth = Truth(self)
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._on_loop_error)
        self.engines = {
            name: SimEngine(self, name, 1 + ((seed + i) % 3 == 0)) for i, name in enumerate(ENGINES)
        }
        self.people = [Person(number, asks // 12) for number in range(12)]
        self._ids = 0
        self._is_over = False
        self.follow_limit_s = 12.0 if seed % 2 else 600.0

    # ---- chance ------------------------------------------------------------------------------

    def luck(self, share: float) -> bool:
        """True that often while there is chaos."""
        return self.chaos and self.rng.random() < share

    def step_s(self) -> float:
        """What a step costs; now and then a process is killed, or stopped for long, at it."""
        actor = self.hub.running
        if not self.chaos or actor is None:
            return 0.001
        x = self.rng.random()
        if x < 0.0012:
            self.hub.die()
        if x < 0.0024:
            actor.process.stopped_until = self.hub.t + self.rng.choice([2.0, 12.0, 25.0])
            self.stat["processes stopped"] += 1
            return 0.001
        return 0.0 if x < 0.5 else self.rng.choice([0.001, 0.003, 0.02])

    def ipc_delay_s(self) -> float:
        """Between a frontend and its ranks."""
        return self.rng.choice([0.0, 0.0, 0.002, 0.02]) if not self.luck(0.03) else 0.8

    def new_id(self) -> UUID:
        """A version 7 UUID of the simulated time."""
        self._ids += 1
        millis = int((START.timestamp() + self.hub.t) * 1000)
        value = millis << 80 | 0x7 << 76 | 0x2 << 62 | self._ids
        return UUID(int=value)

    # ---- seams -------------------------------------------------------------------------------

    def _on_statement(self, sql: str) -> None:
        self.hub.seam("begin" if sql.startswith("BEGIN") else "statement", self.step_s())
        if self.hub.running is not None and self.luck(0.002):
            raise Injected("database is locked")

    def _on_commit_fault(self) -> str:
        if self.hub.running is None or not self.luck(0.004):
            return ""
        return self.rng.choice(["refused", "unheard"])

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception) and self.hub.failure is None:
            self.hub.failure = error

    def spin(self, do: Callable[[], object] | None = None) -> None:
        """Let the engines' followers say what there is to say."""
        if self.loop.is_running():
            return
        if do is not None:
            self.loop.call_soon(do)
        for _ in range(3):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    # ---- faults ------------------------------------------------------------------------------

    def _fault(self) -> None:
        if not self.chaos:
            return
        rng = self.rng
        engine = self.engines[rng.choice(ENGINES)]
        match rng.randrange(12):
            case 0 | 1:
                rng.choice(self.processes).kill()
            case 2:
                rng.choice(self.processes).stopped_until = self.hub.t + rng.choice(
                    [1.0, 12.0, 25.0]
                )
            case 3 | 4:
                engine.kill_front(rng.choice([0.2, 2.0, 12.0]))
            case 5:
                engine.kill_rank(rng.choice(engine.ranks))
            case 6:
                self.network.cut_until = self.hub.t + rng.choice([1.0, 5.0, 12.0])
            case 7:
                self.broker.flush_all()
            case 8:
                self.broker.down_until = self.hub.t + rng.choice([2.0, 15.0])
            case 9 if rng.random() < 0.4:
                engine.kill_front(rng.choice([1.0, 5.0]), lose_journal=True)
            case 10:
                engine.kill_front(rng.choice([1.0, 5.0]), is_reboot=True)
            case 11:
                self.stranger(engine)
        self.hub.after(rng.expovariate(1 / 3.0), self._fault)

    def stranger(self, engine: SimEngine) -> None:
        """Somebody asks the engine itself, past the console."""
        self.stat["strangers"] += 1
        try:
            engine.start_foreign(f"http-{self.stat['strangers']}", FlushCache(), Mode.WAIT, 8.0)
        except ProtocolError as error:
            self.stat[f"stranger: {error.code}"] += 1

    def _traffic(self) -> None:
        """Requests come and go."""
        engine = self.engines[self.rng.choice(ENGINES)]
        self.rng.choice(engine.ranks).busy(self.rng.choice([0.3, 1.0, 3.0, 8.0]))
        self.hub.after(self.rng.expovariate(1 / 2.0), self._traffic)

    def _calm(self) -> None:
        self.chaos = False
        self.network.cut_until = self.broker.down_until = 0.0
        for process in self.processes:
            process.stopped_until = min(process.stopped_until, self.hub.t)

    # ---- a history ---------------------------------------------------------------------------

    def populate(self) -> None:
        """Everybody there is."""
        for number in range(WORKERS):
            kept_alive(self, f"worker-{number}", lambda: worker_lives(self))
        kept_alive(self, "reconciler", lambda: reconciler_lives(self))
        kept_alive(self, "admin", lambda: admin_lives(self))
        for person in self.people:
            kept_alive(self, f"web-{person.number}", partial(person_lives, self, person))

    def _look(self) -> None:
        """Whether everything has ended."""
        is_calm = not self.chaos and self.hub.t > self.calm_at + LATEST_S + 5
        if is_calm and all(person.is_done for person in self.people):
            (row,) = self.db.raw(
                f"SELECT COUNT(*) FROM console_job WHERE state NOT IN ({_TERMINAL})"
            )
            self._is_over = row[0] == 0 and self.in_hand == 0
        self.hub.after(1.0, self._look)

    def run(self) -> None:
        """A whole history, and what must hold of it."""
        with self.seams():
            self.populate()
            self.redis.relay()
            self._traffic()
            self._fault()
            self.hub.at(CHAOS_S, self._calm)
            self._look()
            self.hub.run(lambda: self._is_over, LIMIT_S)
            self.truth.check_all()
            check(self._is_over, "the console never came to rest")

    def seams(self) -> ExitStack:
        """Put the simulation in the place of the outside; undone when it is left."""
        stack = ExitStack()
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)  # thousands of lines that nobody reads, and half the time
        stack.callback(self._close)
        stack.enter_context(clock_used(self.clock))
        drivers = {"quiesce": SimGateway(self)}
        stack.enter_context(patch.dict(registry.DRIVERS, drivers))
        stack.enter_context(patch.object(dispatch, "_publish", self.broker.publish))
        # A process's memory, of which there is one here for all; it only saves a wait.
        stack.enter_context(patch.object(redis_away, "REMEMBERED_S", 0.0))
        stack.enter_context(patch.object(notify, "_send", self._hint))
        stack.enter_context(patch.object(snapshots, "redis_client", lambda: self.redis))
        stack.enter_context(patch.object(jobs, "uuid7", self.new_id))
        stack.enter_context(patch.object(carry, "FOLLOW_LIMIT_S", self.follow_limit_s))
        stack.enter_context(patch.object(self.db, "on_statement", self._on_statement))
        stack.enter_context(patch.object(self.db, "on_commit_fault", self._on_commit_fault))
        stack.enter_context(patch.object(self.db, "on_committed", self.db.check_holders))
        return stack

    def _hint(self, group: str, message: dict[str, object]) -> None:
        check(not self.db.in_atomic_block, "a hint before its commit")

    def _close(self) -> None:
        """End every process and the loop."""
        self.is_closing, self.chaos = True, False
        for process in list(self.processes):
            process.kill()
        for engine in self.engines.values():
            if engine.front is not None:
                engine.front.control.close()
        self.spin()
        self.loop.close()

"""What is done to the processes: SIGKILL of each part in turn and FLUSHALL, in an order by a seed.

A fault is due when so many jobs have ended, so that faults are spread over all of a run whatever
the machine. Most kills wait until an engine has a job in hand, since most are over in a moment.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter, deque
from dataclasses import dataclass, field

import psutil
import redis

from tests.chaos.stack import Chaos, Engine, now
from tests.fakes.waiting import wait_until

CONSOLE = ("web", "worker", "reconcile", "relay", "valkey")
KINDS = (*CONSOLE, "frontend", "rank")
FLUSHALL = "flushall"
# `launch` gives up a child that dies five times in a minute, which is right of it.
_POOL_SHARE = 0.3
_AIMED_SHARE = 0.7  # of the kills: at a moment when a job is under way
_AIM_S = 2.0  # then it is done anyway
_MOST_DEATHS, _WINDOW_S = 3, 60.0
_UNDER_WAY = (
    "SELECT e.name FROM console_job j JOIN console_engine e ON e.id = j.engine_id"
    " WHERE j.state = 'dispatched' AND j.phase <> 'preparing' ORDER BY j.dispatched_at DESC LIMIT 1"
)


@dataclass(frozen=True)
class Struck:
    """One fault that was done."""

    what: str
    at: float


@dataclass
class Faults:
    """The order of a run, and what was done of it."""

    chaos: Chaos
    order: list[str]
    rng: random.Random
    done: list[Struck] = field(default_factory=list)
    _deaths: dict[tuple[str, str], deque[float]] = field(default_factory=dict)

    def run(self, ended: int, total: int) -> None:
        """Do the next one if it is due, now that `ended` of `total` jobs have ended."""
        self.chaos.revive()
        if self.is_over or ended < (len(self.done) + 0.5) / len(self.order) * total * 0.97:
            return
        what = self.order[len(self.done)]
        at = self._aim() if self.rng.random() < _AIMED_SHARE else ""
        if what == FLUSHALL:
            self._flush_all()
        elif what in CONSOLE:
            self._kill_part(what)
        elif not self._kill_child(what, at):
            return  # each of them has died often enough in the last minute
        time.sleep(self.rng.uniform(0.1, 0.6))

    @property
    def is_over(self) -> bool:
        return len(self.done) == len(self.order)

    @property
    def counts(self) -> Counter[str]:
        """How often each was done."""
        return Counter(struck.what for struck in self.done)

    def _aim(self) -> str:
        """Wait until a job is under way on an engine; which one. Empty: none was for a while."""
        until = now() + _AIM_S
        while now() < until:
            if found := self.chaos.stack.sql(_UNDER_WAY):
                time.sleep(self.rng.choice((0.0, 0.0, 0.02, 0.1)))
                return str(found[0][0])
            time.sleep(0.005)
        return ""

    def _struck(self, what: str) -> None:
        self.done.append(Struck(what, now()))

    def _flush_all(self) -> None:
        def flushed() -> bool:
            try:
                with self.chaos.stack.redis() as client:
                    return bool(client.flushall())
            except redis.ConnectionError:  # it was killed just before
                return False

        wait_until(flushed)
        self._struck(FLUSHALL)

    def _kill_part(self, part: str) -> None:
        stack = self.chaos.stack
        wait_until(lambda: stack.parts[part].poll() is None)
        pool = psutil.Process(stack.parts[part].pid).children() if part == "worker" else []
        if pool and self.rng.random() < _POOL_SHARE:
            self.rng.choice(pool).kill()  # one process of the pool, in the middle of a task
            self._struck(part)
            return
        stack.kill(part, signal.SIGKILL)
        self._struck(part)
        time.sleep(self.rng.uniform(0.1, 0.9))
        stack.start(part)

    def _kill_child(self, what: str, at: str) -> bool:
        """A frontend or a rank: of the engine `at` if it may be, else who died least of late."""
        places = [
            (engine, child)
            for engine in self.chaos.engines
            for child in (("frontend",) if what == "frontend" else ("rank 0", "rank 1"))
        ]
        self.rng.shuffle(places)
        places.sort(key=lambda place: self._recent(*place))
        here = [place for place in places if place[0].name == at and self._may_die(*place)]
        engine, child = (here or places)[0]
        pid = engine.pid(child)
        if not self._may_die(engine, child) or pid is None:
            return False
        os.kill(pid, signal.SIGKILL)
        self._deaths[engine.name, child].append(now())
        self._struck(what)
        return True

    def _may_die(self, engine: Engine, child: str) -> bool:
        return self._recent(engine, child) < _MOST_DEATHS

    def _recent(self, engine: Engine, child: str) -> int:
        deaths = self._deaths.setdefault((engine.name, child), deque())
        while deaths and deaths[0] < now() - _WINDOW_S:
            deaths.popleft()
        return len(deaths)


def plan(*, kills: int, flushalls: int, rng: random.Random) -> list[str]:
    """Each kind as often as the others, to within one, in a random order."""
    order = [KINDS[number % len(KINDS)] for number in range(kills)] + [FLUSHALL] * flushalls
    rng.shuffle(order)
    return order

"""Fake time, and processes that are interrupted only where they touch the outside.

Each actor is a greenlet, so the product's own synchronous code runs in it unchanged. It gives the
baton away at seams alone: before a database statement outside a transaction, and at each message,
wait and doorbell. One random generator decides who goes on and who dies: a seed is a whole history.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NoReturn

from greenlet import getcurrent, greenlet

from console.clock import Clock

START = datetime(2026, 1, 1, tzinfo=UTC)


class Violation(AssertionError):
    """A promise was broken."""


def check(ok: object, text: str) -> None:
    """Raise Violation unless `ok`."""
    if not ok:
        raise Violation(text)


class SimKilled(BaseException):
    """SIGKILL, as seen by the code that runs: nothing of it may have an effect any more."""


class Actor:
    """One thread of one process."""

    def __init__(self, process: Process, body: Callable[[], object], name: str) -> None:
        self.process, self.name = process, name
        self.token = 0  # of the only wake-up that counts
        self.is_dead = False
        self.greenlet = greenlet(lambda: self._run(body), parent=process.hub.main)

    def _run(self, body: Callable[[], object]) -> None:
        try:
            with contextlib.suppress(SimKilled):  # the end of a process is what it is for
                body()
        finally:
            self.is_dead = True
            if self in self.process.actors:
                self.process.actors.remove(self)


class Process:
    """What is killed and stopped as one, with a monotonic clock of its own."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub, self.name = hub, name
        self.offset_s = hub.rng.uniform(0, 1e6)
        self.stopped_until = 0.0
        self.actors: list[Actor] = []
        self.is_alive = True
        self.on_death: Callable[[], None] = lambda: None

    def start(self, body: Callable[[], object], name: str = "main") -> Actor:
        """A thread that begins at the next chance."""
        actor = Actor(self, body, f"{self.name}/{name}")
        self.actors.append(actor)
        self.hub.wake(actor)
        return actor

    def kill(self) -> None:
        """End every thread where it waits; not called by one of them."""
        if not self.is_alive:
            return
        self.is_alive = False
        for actor in list(self.actors):
            self.hub.kill(actor)
        self.actors.clear()
        self.on_death()


class Hub:
    """The scheduler: a heap of what is due."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.t = 0.0
        self.main = getcurrent()
        self.running: Actor | None = None
        self.on_seam: Callable[[Actor, str], None] = lambda actor, name: None
        self._heap: list[tuple[float, float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self.failure: BaseException | None = None

    # ---- what the hub does -------------------------------------------------------------------

    def at(self, t: float, do: Callable[[], object]) -> None:
        """Do this at `t`; what is due at one moment happens in random order."""
        heapq.heappush(self._heap, (t, self.rng.random(), next(self._order), do))

    def after(self, seconds: float, do: Callable[[], object]) -> None:
        """Do this so many seconds from now."""
        self.at(self.t + seconds, do)

    def run(self, until: Callable[[], bool], limit_s: float) -> bool:
        """Go on until `until` holds; False when time was up before."""
        while self._heap and self._heap[0][0] <= limit_s:
            t, _, _, do = heapq.heappop(self._heap)
            self.t = max(self.t, t)
            do()
            if self.failure is not None:
                raise self.failure
            if until():
                return True
        return until()

    def wake(self, actor: Actor, after_s: float = 0.0) -> None:
        """Let `actor` go on then; an earlier appointment no longer counts."""
        actor.token += 1
        token = actor.token
        self.after(after_s, lambda: self._resume(actor, token))

    def _resume(self, actor: Actor, token: int) -> None:
        if actor.is_dead or actor.token != token:
            return
        if self.t < actor.process.stopped_until:
            self.at(actor.process.stopped_until, lambda: self._resume(actor, token))
            return
        self._switch(actor, lambda: actor.greenlet.switch())

    def kill(self, actor: Actor) -> None:
        """Raise SimKilled where `actor` waits."""
        if actor.is_dead:
            return
        actor.is_dead = True
        if actor.greenlet:  # it has begun
            self._switch(actor, lambda: actor.greenlet.throw(SimKilled))

    def _switch(self, actor: Actor, into: Callable[[], object]) -> None:
        assert self.running is None
        self.running = actor
        try:
            into()
        finally:
            self.running = None

    # ---- what actors do ----------------------------------------------------------------------

    def pause(self, seconds: float = 0.0) -> None:
        """Give the baton away for so long, or until somebody wakes this actor."""
        actor = self.running
        assert actor is not None
        if actor.is_dead:  # it is being killed, and its last words reach nobody
            raise SimKilled
        self.wake(actor, seconds)
        self.main.switch()

    def seam(self, name: str, pause_s: float = 0.0) -> None:
        """A place where the outside is touched: others may go first, or this process end here."""
        actor = self.running
        if actor is None:
            return
        if actor.is_dead:
            raise SimKilled
        self.on_seam(actor, name)
        if pause_s:
            self.pause(pause_s)

    def die(self) -> NoReturn:
        """The running actor's process ends here."""
        actor = self.running
        assert actor is not None
        self.after(0.0, actor.process.kill)
        self.pause(1e9)
        raise AssertionError("a killed process went on")


class Ticking:
    """What SimClock.every gives: an actor beside its caller, in the same process."""

    def __init__(self, hub: Hub, period_s: float, step: Callable[[], bool], name: str) -> None:
        assert hub.running is not None
        self._hub, self._period_s, self._step = hub, period_s, step
        self._is_stopped = False
        self._actor = hub.running.process.start(self._run, name)

    def _run(self) -> None:
        self._hub.pause(self._period_s)
        while not self._is_stopped and self._step() and not self._is_stopped:
            self._hub.pause(self._period_s)

    def stop(self, *, within_s: float) -> None:
        self._is_stopped = True
        if not self._actor.is_dead:
            self._hub.wake(self._actor)


class SimClock(Clock):
    """The hub's time; each process has its own origin of monotonic time."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub

    def now(self) -> datetime:
        return START + timedelta(seconds=self.hub.t)

    def monotonic_s(self) -> float:
        actor = self.hub.running
        return self.hub.t + (actor.process.offset_s if actor else 0.0)

    def sleep(self, seconds: float) -> None:
        self.hub.seam("sleep", max(seconds, 1e-3))

    def every(self, period_s: float, step: Callable[[], bool], *, name: str) -> Ticking:
        return Ticking(self.hub, period_s, step, name)

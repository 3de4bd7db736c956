"""The console's clocks: the database's, on which deadlines and leases are compared, and a process's
own, for its waits.

Services and tasks read the time, wait and repeat through this module only, so that a simulation can
bring its own time.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Protocol

import structlog
from django.db import connection

log = structlog.get_logger(__name__)


class Ticks(Protocol):
    """A step that is repeated beside its caller."""

    def stop(self, *, within_s: float) -> None:
        """No further step; waits at most so long for one that is being done."""


class Clock:
    """The clocks of this host and of its database."""

    def now(self) -> datetime:
        """Now, on the clock of the database server. SQLite has no server: its clock is the
        host's."""
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SELECT clock_timestamp()")
                (now,) = cursor.fetchone()
                assert isinstance(now, datetime), now
                return now
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        """Seconds on a clock of this process that is never set."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def every(self, period_s: float, step: Callable[[], bool], *, name: str) -> Ticks:
        """Do `step` on a thread of its own every `period_s`, until it returns False or is
        stopped."""
        return _Thread(period_s, step, name)


class _Thread:
    """Begins when the first step is due: most callers have stopped it by then."""

    def __init__(self, period_s: float, step: Callable[[], bool], name: str) -> None:
        self._period_s, self._step = period_s, step
        self._stop = threading.Event()
        self._lock = threading.Lock()  # of whether it has begun
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        _starter().start_at(time.monotonic() + period_s, self._begin)

    def stop(self, *, within_s: float) -> None:
        with self._lock:
            self._stop.set()
            has_begun = self._thread.ident is not None
        if has_begun:
            self._thread.join(timeout=within_s)

    def _begin(self) -> None:
        with self._lock:
            if not self._stop.is_set():
                self._thread.start()

    def _run(self) -> None:
        while self._step() and not self._stop.wait(self._period_s):
            continue


class _Starter:
    """One thread a process that calls what is due. What it calls must not wait."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()  # in place of comparing what is called
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="starter", daemon=True).start()

    def start_at(self, at_s: float, call: Callable[[], None]) -> None:
        with self._changed:
            is_next = not self._due or at_s < self._due[0][0]
            heapq.heappush(self._due, (at_s, next(self._count), call))
            if is_next:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    left_s = self._due[0][0] - time.monotonic() if self._due else None
                    self._changed.wait(left_s)
                _, _, call = heapq.heappop(self._due)
            try:
                call()
            except Exception as error:  # of threads, there may be too many; others still are due
                log.error("not begun", exc_info=error)


_starters: dict[int, _Starter] = {}
_starters_lock = threading.Lock()


def _starter() -> _Starter:
    """This process's; threads do not live on in a child."""
    with _starters_lock:
        pid = os.getpid()
        if pid not in _starters:
            _starters.clear()
            _starters[pid] = _Starter()
        return _starters[pid]


_clock = Clock()


def db_now() -> datetime:
    """Now, on the database's clock."""
    return _clock.now()


def monotonic_s() -> float:
    """Seconds on this process's own clock."""
    return _clock.monotonic_s()


def sleep_s(seconds: float) -> None:
    """Wait."""
    _clock.sleep(seconds)


def every_s(period_s: float, step: Callable[[], bool], *, name: str) -> Ticks:
    """Repeat `step` beside the caller, until it returns False or is stopped."""
    return _clock.every(period_s, step, name=name)


@contextlib.contextmanager
def clock_used(clock: Clock) -> Iterator[None]:
    """Go by `clock` inside: for a simulation."""
    global _clock
    before, _clock = _clock, clock
    try:
        yield
    finally:
        _clock = before

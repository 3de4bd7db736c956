"""The console's clocks: the database's, on which deadlines and leases are compared, and a process's
own, for its waits.

Services and tasks read the time, wait and repeat through this module only, so that a simulation can
bring its own time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Protocol

from django.db import connection


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
    def __init__(self, period_s: float, step: Callable[[], bool], name: str) -> None:
        self._period_s, self._step = period_s, step
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self, *, within_s: float) -> None:
        self._stop.set()
        self._thread.join(timeout=within_s)

    def _run(self) -> None:
        while not self._stop.wait(self._period_s) and self._step():
            continue


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

"""How many threads carry out the next step: all, or fewer while other work keeps cores busy.

Threads of a step wait for each other some 240 times. Where another process takes a core, one of
them is often not running and all wait for it: then half the threads are faster. Told after each
step how long its threads waited; knows no thread itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable

STALLED_SHARE = 0.4  # of a step's time: waits that are longer than work is ever uneven
STALLED_STEPS = 3  # in a row, before it is believed
FIRST_RETRY_S, LONGEST_RETRY_S = 0.25, 4.0


class TeamSize:
    """`next` before a step, `stepped` after it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._halvings = 0
        self._stalled = 0
        self._retry_at = 0.0
        self._retry_s = FIRST_RETRY_S
        self._is_trying = False

    def next(self, most: int) -> int:
        """Threads for the next step, `most` at most; now and then one more than was good before."""
        self._is_trying = self._halvings > 0 and self._clock() >= self._retry_at
        return max(1, most >> (self._halvings - self._is_trying))

    def stepped(self, threads: int, waited_s: float, took_s: float) -> None:
        """A step of `threads` threads took so long; all waits of all of them together."""
        is_stalled = threads > 1 and waited_s > STALLED_SHARE * took_s * (threads - 1)
        if self._is_trying:
            self._tried(is_stalled)
        elif not is_stalled:
            self._stalled = 0
        else:
            self._stalled += 1
            if self._stalled == STALLED_STEPS:
                self._halvings += 1
                self._stalled = 0
                self._retry_s = FIRST_RETRY_S
                self._retry_at = self._clock() + self._retry_s

    def _tried(self, is_stalled: bool) -> None:
        if is_stalled:
            self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)
        else:
            self._halvings -= 1
            self._retry_s = FIRST_RETRY_S
        self._retry_at = self._clock() + self._retry_s

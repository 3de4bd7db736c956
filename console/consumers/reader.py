"""Reads one topic for everybody in this process who watches it, and hands the readings out.

The first change is read at once. Further ones are put together: while a reading is made, for a
moment after it, and while the topic's allowance is used up. An end does not wait for that moment.
What a lost hint would hide, a slow re-reading finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog
from django.db import DatabaseError, InterfaceError

from console.access import Rights
from console.consumers.allowance import Allowance
from console.consumers.topics import Reading
from console.notify import ENDED

log = structlog.get_logger(__name__)

BURST_S = 0.25  # of reading and sending, at once
SHARE = 0.25  # of one core, in the long run, for one topic
SEND_S = 0.00006  # what one message costs the process (tests/bench/live.py)
RESYNC_S = 4.0
# A job that nothing holds up is claimed, sent and done within this: steps that nobody could see
# are not read on the way to its end, which would wait for that.
GAP_S = 0.05
FAULT_REST_S = 0.25


@dataclass(frozen=True)
class Found:
    """A reading for each of the people that were asked for, and how long making them took."""

    by_person: dict[int, Reading]
    took_s: float


# (topic, people, digest that all with such rights were sent)
Read = Callable[[str, list[int], dict[Rights, bytes]], Awaitable[Found]]


class Watcher(Protocol):
    """Who watches: a socket."""

    user_id: int

    def show(self, topic: str, message: str) -> None:
        """A newer reading of the topic. Must not wait."""

    def gone(self, topic: str, *, is_refused: bool) -> None:
        """There is no such thing for them (any more); `is_refused`: and there never was."""

    def fail(self) -> None:
        """The topic cannot be read: a fault of ours."""


@dataclass(eq=False)
class Seat:
    """One watcher of this topic, and what they were shown last."""

    watcher: Watcher
    version: int = -1  # nothing yet
    digest: bytes = b""
    rights: Rights | None = None  # as they were read last
    is_final: bool = False


@dataclass(eq=False)
class Reader:
    """One topic. It runs while somebody watches."""

    topic: str
    read: Read
    _seats: dict[Watcher, Seat] = field(default_factory=dict)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _at_once: asyncio.Event = field(default_factory=asyncio.Event)
    _read_at_s: float = -GAP_S
    _task: asyncio.Task[None] | None = None
    _allowance: Allowance = field(
        default_factory=lambda: Allowance(burst_s=BURST_S, share=SHARE, longest_rest_s=RESYNC_S)
    )

    def seat(self, watcher: Watcher) -> None:
        """Show them the topic, and each change; also to one who asks again, as if they were new."""
        self._seats[watcher] = Seat(watcher)
        self.mark(ENDED)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    @property
    def is_watched(self) -> bool:
        """By somebody."""
        return bool(self._seats)

    def leave(self, watcher: Watcher) -> None:
        """Show them nothing more from this moment, also not what is being read."""
        self._seats.pop(watcher, None)
        if not self._seats and self._task is not None:
            self._task.cancel()
            self._task = None

    def mark(self, kind: str = "") -> None:
        """It changed, or, with ENDED, did so for the last time."""
        self._wake.set()
        if kind == ENDED:
            self._at_once.set()

    async def _run(self) -> None:
        while True:
            await self._until_due()
            try:
                await self._pass()
            except (DatabaseError, InterfaceError) as error:
                log.warning("topic not read", topic=self.topic, error=repr(error))
                self.mark()
                await asyncio.sleep(FAULT_REST_S)
            except Exception as error:
                # Their pages open another socket and read anew, rather than to go stale.
                log.error("live topic failed", topic=self.topic, exc_info=error)
                failed, self._seats = self._seats, {}
                for watcher in failed:
                    watcher.fail()

    async def _until_due(self) -> None:
        is_final = all(seat.is_final for seat in self._seats.values())
        spread_s = RESYNC_S * random.uniform(0.8, 1.2)  # noqa: S311  # spread, not secret
        try:
            async with asyncio.timeout(None if is_final else spread_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        gap_s = self._read_at_s + GAP_S - time.monotonic()
        if gap_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(gap_s):
                    await self._at_once.wait()
        if rest_s := self._allowance.wait_s(time.monotonic()):
            await asyncio.sleep(rest_s)

    async def _pass(self) -> None:
        """One reading for all with the same rights; first for those of whom none are known yet."""
        self._wake.clear()
        self._at_once.clear()
        alike: dict[Rights | None, list[Seat]] = {}
        for seat in self._seats.values():
            alike.setdefault(seat.rights, []).append(seat)
        for rights, seats in sorted(alike.items(), key=lambda one: one[0] is not None):
            # A reading for each group, so that no rights are old when theirs is handed out.
            here = [seat for seat in seats if self._is_here(seat)]
            if here:
                people = sorted({seat.watcher.user_id for seat in here})
                found = await self.read(self.topic, people, _known_of(rights, here))
                here = [seat for seat in here if self._is_here(seat)]
                num_sent = sum(
                    self._show(seat, found.by_person[seat.watcher.user_id]) for seat in here
                )
                self._read_at_s = time.monotonic()
                self._allowance.spend(found.took_s + num_sent * SEND_S, self._read_at_s)

    def _is_here(self, seat: Seat) -> bool:
        """They did not leave meanwhile, nor ask anew."""
        return self._seats.get(seat.watcher) is seat

    def _show(self, seat: Seat, reading: Reading) -> bool:
        """True when it was news."""
        state, rights = reading.state, seat.rights
        if state is None:
            del self._seats[seat.watcher]  # until they ask anew
            seat.watcher.gone(self.topic, is_refused=seat.version < 0)
            return False
        seat.rights = reading.rights
        is_same = state.digest == seat.digest and reading.rights == rights
        if state.version < seat.version or is_same:
            return False  # never backwards, never the same twice
        assert reading.message, f"{self.topic} was read as known to all, and was not to one"
        seat.version, seat.digest, seat.is_final = state.version, state.digest, state.is_final
        seat.watcher.show(self.topic, reading.message)
        return True


def _known_of(rights: Rights | None, seats: list[Seat]) -> dict[Rights, bytes]:
    """The digest that all of them have been shown, if there is one."""
    digests = {seat.digest for seat in seats}
    return {rights: digests.pop()} if rights is not None and len(digests) == 1 else {}

"""Work beside serving: one thread a job, its end told on the thread that asks for it.

Knows nothing of weights. The scheduler's thread starts jobs and calls `poll`; it never waits.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import torch

from engine.protocol import Staging

_T = TypeVar("_T")
_NICE = 10  # beside serving, not instead of it


class Cancelled(Exception):
    """The job's result is no longer wanted."""


class Job(Generic[_T]):
    """One piece of work. `note` is its progress, and where it learns that it may stop."""

    def __init__(self, what: str, total_bytes: int = 0) -> None:
        self.what = what
        self.total_bytes = total_bytes
        self.done_bytes = 0
        self.started_at = time.monotonic()
        self.result: _T | None = None
        self.error: BaseException | None = None
        self._cancelled = threading.Event()

    def note(self, done_bytes: int) -> None:
        """So much is done. Raises Cancelled."""
        self.done_bytes = done_bytes
        if self._cancelled.is_set():
            raise Cancelled

    def cancel(self) -> None:
        """Ask it to stop at its next note; its end is not told."""
        self._cancelled.set()

    @property
    def is_cancelled(self) -> bool:
        """Nobody waits for its end."""
        return self._cancelled.is_set()

    def staging(self) -> Staging:
        """Its progress, for people."""
        return Staging(
            what=self.what,
            done_bytes=self.done_bytes,
            total_bytes=max(self.total_bytes, self.done_bytes),
            elapsed_s=time.monotonic() - self.started_at,
        )


class Background:
    """All jobs of one rank."""

    def __init__(self) -> None:
        self._ended: queue.SimpleQueue[tuple[Job[object], Callable[[], None]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running = 0

    @property
    def is_busy(self) -> bool:
        """Some job has not been told the end of."""
        return self._running > 0

    def start(
        self, job: Job[_T], work: Callable[[Job[_T]], _T], done: Callable[[Job[_T]], None]
    ) -> Job[_T]:
        """Run `work(job)` on a thread of its own; `poll` calls `done(job)` when it has ended."""

        def run() -> None:
            _be_gentle()
            try:
                job.result = work(job)
            except BaseException as error:  # noqa: BLE001 - told to whoever waits for the job
                job.error = error
            self._ended.put((job, lambda: done(job)))  # type: ignore[arg-type]

        self._running += 1
        threading.Thread(target=run, name=job.what, daemon=True).start()
        return job

    def poll(self) -> None:
        """Tell the ends that have come."""
        while True:
            try:
                job, told = self._ended.get_nowait()
            except queue.Empty:
                return
            self._running -= 1
            if not job.is_cancelled:
                told()

    def drop(self, thing: list[object], then: Callable[[], None] | None = None) -> None:
        """Let go of what is large: giving its memory back takes a while. `thing` is emptied, and
        `then` is called, on another thread, when it is gone."""
        if not thing:
            return
        held, thing[:] = list(thing), []

        def run() -> None:
            held.clear()
            if then is not None:
                then()

        threading.Thread(target=run, name="drop", daemon=True).start()


def _be_gentle() -> None:
    """Less of the machine than serving: one core, and that one only when it is not wanted."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)

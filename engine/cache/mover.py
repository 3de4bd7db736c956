"""Copies between the device and the host, beside the forward pass: one thread, in order.

Whoever asks has seen to it that the pages stay as they are until the copy is told to be done.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.cache.node import Transfer


class Copier(Protocol):
    """engine.memory.page_copy, or a scripted one in tests."""

    def to_host(self, device_pages: Sequence[int], host_pages: Sequence[int]) -> None:
        """Copy page by page; done when it returns."""

    def to_device(self, host_pages: Sequence[int], device_pages: Sequence[int]) -> None:
        """Copy page by page; done when it returns."""


@dataclass(slots=True)
class Copy:
    """One order. `error` is why it was not done."""

    transfer: Transfer
    is_load: bool  # to the device
    sources: list[int]
    targets: list[int]
    error: str = ""


class Mover:
    """`wake` is called, from the thread, when something is done."""

    def __init__(self, copier: Copier, wake: Callable[[], None]) -> None:
        self._copier = copier
        self._wake = wake
        self._orders: queue.SimpleQueue[Copy | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        self.num_under_way = 0
        threading.Thread(target=self._run, name="page mover", daemon=True).start()

    def start(self, copy: Copy) -> None:
        """Copy as soon as those before are done."""
        self.num_under_way += 1
        self._orders.put(copy)

    def finished(self) -> list[Copy]:
        """What was done since the last call."""
        done = []
        while True:
            try:
                done.append(self._done.get_nowait())
            except queue.Empty:
                self.num_under_way -= len(done)
                return done

    def wait(self, timeout_s: float) -> list[Copy]:
        """What is done next, waiting for it; nothing when it takes longer."""
        if not self.num_under_way:
            return []
        try:
            copy = self._done.get(timeout=timeout_s)
        except queue.Empty:
            return []
        self.num_under_way -= 1
        return [copy, *self.finished()]

    def close(self) -> None:
        """End the thread, after what was ordered."""
        self._orders.put(None)

    def _run(self) -> None:
        while (copy := self._orders.get()) is not None:
            move = self._copier.to_device if copy.is_load else self._copier.to_host
            try:
                move(copy.sources, copy.targets)
            except Exception as error:  # noqa: BLE001 - told, and counted by who asked
                copy.error = f"{type(error).__name__}: {error}"
            self._done.put(copy)
            self._wake()

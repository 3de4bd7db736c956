"""Reads and writes of one rank's backend, off the scheduler's thread: one thread for each way.

The scheduler's thread starts transfers and asks what has ended. A call that does not come back in
time is given up: its transfer ends for the scheduler, its buffers stay untouched until it is back.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from engine.cache.node import Transfer
from engine.cache.storage.guard import Guard
from engine.memory.host_pool import HostPool, make_records

EXISTS_AT_ONCE = 128
PAGES_AT_ONCE = 32
_GRACE_S = 1.0
_PROBE_EVERY_S = 1.0
_PROBE_KEY = bytes(48)
_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class Put:
    """Nodes on their way to storage. `kept` says of each host page whether it got there."""

    transfer: Transfer
    keys: list[bytes]
    pages: list[int]
    number: int = 0  # of the attachment
    prefix: list[bytes] | None = None  # keys of the pages before, where the backend is told
    kept: dict[int, bool] = field(default_factory=dict)
    is_abandoned: bool = False  # the scheduler has been told that it failed
    is_back: bool = False


@dataclass(slots=True, eq=False)
class Get:
    """Pages on their way from storage, in order. The first `num_ok` of `pages` are whole."""

    keys: list[bytes]
    pages: list[int]
    prefix: list[bytes] | None = None  # keys of the pages before, where the backend is told
    num_ok: int = 0  # the reader's thread alone changes it
    num_taken: int = 0  # of those, what the tree has now
    is_cancelled: bool = False  # whoever asked has taken what had come
    is_abandoned: bool = False
    is_back: bool = False  # nobody touches its pages any more


class StorageWorker:
    """`wake` is called, from a thread, when something has ended."""

    def __init__(
        self, guard: Guard, pool: HostPool, *, io_timeout_s: float, wake: Callable[[], None]
    ) -> None:
        self.guard = guard
        self._pool = pool
        self._io_timeout_s = io_timeout_s
        self._wake = wake
        self._gets: queue.SimpleQueue[Get | None] = queue.SimpleQueue()
        self._puts: queue.SimpleQueue[Put | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Get | Put] = queue.SimpleQueue()
        self._under_way: list[Get | Put] = []
        self._busy_since: dict[str, float] = {}
        self._is_stopping = False
        self._bounces: dict[str, list[memoryview]] = {}
        if not pool.is_page_first:
            for way in ("get", "put"):
                self._bounces[way] = make_records(PAGES_AT_ONCE, pool.record_bytes)
        self._threads = [
            threading.Thread(target=self._read, name="storage reader", daemon=True),
            threading.Thread(target=self._write, name="storage writer", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # ---- the scheduler's thread --------------------------------------------------------------

    @property
    def takes(self) -> bool:
        """It is worth asking for something."""
        return not self._is_stopping and self.guard.breaker.max_pages != 0

    def start(self, transfer: Get | Put) -> None:
        """Carry it out, after those before it."""
        self._under_way.append(transfer)
        if isinstance(transfer, Get):
            self._gets.put(transfer)
        else:
            self._puts.put(transfer)

    def ended(self) -> list[Get | Put]:
        """What has ended since the last call, given-up transfers included, each of them twice:
        once with `is_abandoned`, and once when it `is_back`."""
        found: list[Get | Put] = []
        while True:
            try:
                transfer = self._done.get_nowait()
            except queue.Empty:
                break
            transfer.is_back = True
            self._under_way.remove(transfer)
            found.append(transfer)
        return found + self._overdue()

    def _overdue(self) -> list[Get | Put]:
        """All that waits behind a call that does not come back."""
        limit_s = self._io_timeout_s + _GRACE_S
        now = time.monotonic()
        stalled = any(now - since > limit_s for since in list(self._busy_since.values()))
        self.guard.stalled(stalled, limit_s)
        return self.give_up() if stalled else []

    def give_up(self) -> list[Get | Put]:
        """End all that is under way, as far as the scheduler is concerned."""
        found = [transfer for transfer in self._under_way if not transfer.is_abandoned]
        for transfer in found:
            transfer.is_abandoned = True
        return found

    @property
    def num_gets(self) -> int:
        """Reads that somebody waits for."""
        return self._count(Get)

    @property
    def num_puts(self) -> int:
        """Writes that somebody waits for."""
        return self._count(Put)

    @property
    def num_put_pages(self) -> int:
        """Pages of all writes, those given up included: their buffers are still in use."""
        return sum(len(transfer.pages) for transfer in self._under_way if isinstance(transfer, Put))

    @property
    def is_busy(self) -> bool:
        """Something has not come back yet."""
        return bool(self._under_way)

    def _count(self, kind: type[Get | Put]) -> int:
        return sum(
            1
            for transfer in self._under_way
            if isinstance(transfer, kind) and not transfer.is_abandoned
        )

    def stop(self) -> None:
        """Take nothing more; what is under way ends early."""
        self._is_stopping = True
        self._gets.put(None)
        self._puts.put(None)

    def close(self, deadline: float) -> str:
        """Stop and close the backend, by `deadline`; from a thread that may wait. Returns why the
        handle had to be abandoned instead: closing it under a call would end the process."""
        self.stop()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return "a call to the store has not come back; its handle was left as it is"
        return self.guard.close(max(deadline, time.monotonic() + _GRACE_S))

    # ---- its threads -------------------------------------------------------------------------

    def _read(self) -> None:
        while True:
            try:
                get = self._gets.get(timeout=_PROBE_EVERY_S)
            except queue.Empty:
                self._probe()
                continue
            if get is None:
                return
            if not (get.is_cancelled or get.is_abandoned or self._is_stopping):
                self._fetch(get)
            self._tell(get)

    def _probe(self) -> None:
        """A breaker that has opened closes by itself, without traffic."""
        if self.guard.breaker.max_pages == 1:
            self._timed("get", lambda: self.guard.find([_PROBE_KEY]))

    def _fetch(self, get: Get) -> None:
        found, keys = 0, get.keys
        if get.prefix is not None:
            self.guard.follows(get.prefix)
        while found < len(keys):
            limit = self.guard.breaker.max_pages
            size = EXISTS_AT_ONCE if limit is None else min(limit, EXISTS_AT_ONCE)
            some = keys[found : found + size]
            if not some or self._gone(get):
                break
            count = self._find(some)
            found += count
            if count < len(some) or limit is not None:
                break
        self.guard.counters.miss_pages += len(keys) - found
        while get.num_ok < found and not self._gone(get):
            limit = self.guard.breaker.max_pages
            size = PAGES_AT_ONCE if limit is None else min(limit, PAGES_AT_ONCE)
            batch = range(get.num_ok, min(found, get.num_ok + size))
            if not batch:
                break
            good = self._get_pages(get, batch)
            get.num_ok += good
            if good < len(batch):
                break

    def _find(self, keys: list[bytes]) -> int:
        return self._timed("get", lambda: self.guard.find(keys))

    def _gone(self, get: Get) -> bool:
        return get.is_cancelled or get.is_abandoned or self._is_stopping

    def _get_pages(self, get: Get, some: range) -> int:
        keys = [get.keys[i] for i in some]
        pages = [get.pages[i] for i in some]
        if self._pool.is_page_first:
            buffers = [self._pool.record(page) for page in pages]
            return self._timed("get", lambda: self.guard.get(keys, buffers))
        buffers = self._bounces["get"][: len(pages)]
        good = self._timed("get", lambda: self.guard.get(keys, buffers))
        for buffer, page in zip(buffers[:good], pages[:good], strict=True):
            self._pool.scatter(buffer, page)
        return good

    def _write(self) -> None:
        while True:
            put = self._puts.get()
            if put is None:
                return
            if put.prefix is not None:
                self.guard.follows(put.prefix)
            for first in range(0, len(put.keys), PAGES_AT_ONCE):
                some = slice(first, first + PAGES_AT_ONCE)
                self._put_pages(put, put.keys[some], put.pages[some])
            self._tell(put)

    def _put_pages(self, put: Put, keys: list[bytes], pages: list[int]) -> None:
        limit = self.guard.breaker.max_pages
        count = len(keys) if limit is None else min(limit, len(keys))
        if put.is_abandoned or self._is_stopping:
            count = 0
        self.guard.dropped(len(keys) - count)
        put.kept |= dict.fromkeys(pages[count:], False)
        keys, pages = keys[:count], pages[:count]
        if not keys:
            return
        if self._pool.is_page_first:
            records = [self._pool.record(page) for page in pages]
        else:
            records = self._bounces["put"][: len(pages)]
            for record, page in zip(records, pages, strict=True):
                self._pool.gather(page, record)
        kept = self._timed("put", lambda: self.guard.put(keys, records))
        put.kept |= dict(zip(pages, kept, strict=True))

    def _timed(self, way: str, call: Callable[[], _T]) -> _T:
        self._busy_since[way] = time.monotonic()
        try:
            return call()
        finally:
            del self._busy_since[way]

    def _tell(self, transfer: Get | Put) -> None:
        self._done.put(transfer)
        self._wake()

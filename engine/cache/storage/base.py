"""What a storage backend is: a place that keeps records under keys, for one rank.

A record is the bytes of one host page with its header, always `Site.record_bytes` long; backends
neither read nor change it (`records.py` seals and checks them). Its buffer is page-aligned, of a
multiple of 4 KiB, and stays alive and untouched until the call has come back.

Threads: `open`, `probe` and `close` come from a thread of their own, gets from one thread and puts
from another, at the same time. `close` is never called while another call is under way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import ClassVar

from engine.protocol import HostLayout

ALIGNMENT_BYTES = 4096
KEY_BYTES = 48  # fingerprint (16), then the page's chained hash (32)


class Status(IntEnum):
    """What became of one page of a batch."""

    OK = 0
    MISS = 1  # get: it is not there
    FULL = 2  # put: no room, and nothing may be evicted for it
    ERROR = 3  # counted, and against the breaker


class StorageError(Exception):
    """Opening, probing or clearing failed. The sentence is shown to people and holds no secret."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where a backend works: one rank of one engine, and what it may touch."""

    model: str  # a name that is safe in a path and in a key
    identity: bytes  # 16: model, KV dtype, layout, page size, tensor parallelism; no weights
    dp_rank: int
    record_bytes: int
    layout: HostLayout
    roots: tuple[Path, ...]  # folders under which files may be kept
    endpoints: tuple[str, ...]  # "host:port", "host:*" or "*": what may be connected to
    pool: memoryview  # all host pages: registered once by backends that must


@dataclass(frozen=True, slots=True)
class Stats:
    """What a backend knows of itself; None where it does not."""

    stored_pages: int | None = None
    used_bytes: int | None = None
    capacity_bytes: int | None = None


class Storage(ABC):
    """One backend of one rank. Made with its own config struct and a Site; does nothing until
    `open`. Data calls may raise anything: `guard.py` turns that into ERROR for every page."""

    # Layouts that it can work on; another one is refused at attach, with `layout_reason`.
    layouts: ClassVar[frozenset[HostLayout]] = frozenset(HostLayout)
    layout_reason: ClassVar[str] = ""
    # True: its records are seen by the other ranks of the engine, and by a later engine.
    is_shared: bool = True

    @abstractmethod
    def open(self, deadline: float) -> None:
        """Connect or open, by `deadline` (time.monotonic). Raises StorageError, leaving nothing."""

    @abstractmethod
    def batch_exists(self, keys: Sequence[bytes]) -> list[bool]:
        """Which are there, one answer a key, in order. A hint: a get may still miss."""

    @abstractmethod
    def batch_get(self, keys: Sequence[bytes], buffers: Sequence[memoryview]) -> list[Status]:
        """Read each record into its buffer. A missing page leaves the others whole; a record of
        another length is a MISS."""

    @abstractmethod
    def batch_put(self, keys: Sequence[bytes], records: Sequence[memoryview]) -> list[Status]:
        """Keep each record. One that is there already is OK, rewritten or not."""

    @abstractmethod
    def batch_delete(self, keys: Sequence[bytes]) -> None:
        """Remove these, as far as they are there."""

    @abstractmethod
    def clear(self, deadline: float) -> int:
        """Remove what engines of this `identity` keep here (a file backend: what this rank keeps),
        and nothing else. Returns how many pages. Raises StorageError when it is not done by
        `deadline`, or in part. What another rank clears at the same time is no error."""

    @abstractmethod
    def close(self, deadline: float) -> None:
        """Flush and close; threads it made have ended, files and sockets are closed. The data
        stays. Harmless when open failed or close was called before."""

    def follows(self, prefix_keys: Sequence[bytes]) -> None:
        """What the next get or put of this thread is about goes on after these pages, first to
        last. Told only with `hicache_storage_pass_prefix_keys`; of use to a store that places or
        evicts by prefix. None of the backends that come with the engine is one."""
        del prefix_keys

    def stats(self) -> Stats:
        """Numbers for people; cheap, from any thread."""
        return Stats()

"""Host pages for tests of storage backends: one mapping, sealed records in it."""

from __future__ import annotations

import hashlib
import mmap
import random
import time
from collections.abc import Sequence

from engine.cache.storage import keys, records
from engine.cache.storage.base import Storage
from tests.fakes.waiting import PATIENCE_S, wait_until

WEIGHTS = "0123456789abcdef"


class Pages:
    """`count` pages; a page's content follows from its key, so that a mix-up shows."""

    def __init__(self, payload_bytes: int = 20_000, count: int = 48, spare: int = 8) -> None:
        self.payload_bytes = payload_bytes
        self.record_bytes = records.record_bytes(payload_bytes)
        self.count = count
        self.pool = memoryview(mmap.mmap(-1, self.record_bytes * (count + spare)))
        start = self.record_bytes * count
        self.spare = [  # for a second thread
            self.pool[at : at + self.record_bytes]
            for at in range(start, len(self.pool), self.record_bytes)
        ]
        self._next = 0

    def buffers(self, count: int) -> list[memoryview]:
        """Pages that hold zeros. They go round: no more than `count` are of use at a time."""
        found = []
        for _ in range(count):
            start = (self._next % self.count) * self.record_bytes
            found.append(self.pool[start : start + self.record_bytes])
            found[-1][:] = bytes(self.record_bytes)
            self._next += 1
        return found

    def sealed(self, page_keys: Sequence[bytes]) -> list[memoryview]:
        found = self.buffers(len(page_keys))
        for key, record in zip(page_keys, found, strict=True):
            record[records.HEADER_BYTES :][: self.payload_bytes] = self.payload(key)
            records.seal(record, key, self.payload_bytes)
        return found

    def payload(self, key: bytes) -> bytes:
        return random.Random(key).randbytes(self.payload_bytes)

    def faults(self, page_keys: Sequence[bytes], got: Sequence[memoryview]) -> list[object]:
        """None for each page that is the one that was written under its key."""
        return [
            records.fault_of(record, key, self.payload_bytes)
            for key, record in zip(page_keys, got, strict=True)
        ]


def page_keys(count: int, identity: bytes, start: int = 0) -> list[bytes]:
    fingerprint = keys.fingerprint(identity, WEIGHTS)
    return [
        keys.page_key(fingerprint, hashlib.sha256(b"%d" % i).digest())
        for i in range(start, start + count)
    ]


def soon(seconds: float = PATIENCE_S) -> float:
    """A deadline, by which all that can happen has happened."""
    return time.monotonic() + seconds


def seen(storage: Storage, page_keys: Sequence[bytes]) -> bool:
    """True once all of these are there: another rank may find them a moment later."""
    wait_until(lambda: all(storage.batch_exists(page_keys)))
    return True

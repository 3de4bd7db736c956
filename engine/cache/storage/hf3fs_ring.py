"""One USRBIO ring with its memory: a batch of reads or of writes at a time.

Each I/O carries the number of its batch, and completions of another batch are thrown away. Memory
is used again only after all of a batch has come back; one that has not is a TimeoutError, after
which the whole process is ended by its parent.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from hf3fs_fuse.io import make_ioring, make_iovec

_HOLES_ARE_ERRORS = 2  # of a read; they are zeros otherwise


class Ring:
    """A ring of one direction. Not to be used by two threads."""

    def __init__(
        self, mount: str, fd: int, entries: int, record_bytes: int, *, is_read: bool
    ) -> None:
        self.entries = entries
        self._fd, self._record_bytes, self._is_read = fd, record_bytes, is_read
        self._shared = SharedMemory(create=True, size=entries * record_bytes)
        assert self._shared.buf is not None, "shared memory that was closed at once"
        self._bytes = self._shared.buf
        self._memory: Any = make_iovec(self._shared, mount)  # Any: a package without types
        flags = _HOLES_ARE_ERRORS if is_read else 0
        self._ring: Any = make_ioring(mount, entries, is_read, flags=flags)
        self._generation = 0
        self._waiting = 0

    def submit(self, slots: Sequence[int], pages: Sequence[memoryview]) -> None:
        """Begin to read these slots, or to write these pages into them."""
        assert self._waiting == 0, f"{self._waiting} completions of the last batch are missing"
        assert len(slots) <= self.entries, f"{len(slots)} of {self.entries} entries"
        self._generation += 1
        size = self._record_bytes
        for i, slot in enumerate(slots):
            part = self._memory[i * size : (i + 1) * size]
            if not self._is_read:
                self._bytes[i * size : (i + 1) * size] = pages[i]
            self._ring.prepare(
                part, self._is_read, self._fd, slot * size, userdata=(self._generation, i)
            )
        self._ring.submit()
        self._waiting = len(slots)

    def wait(self, pages: Sequence[memoryview], deadline: float) -> list[int]:
        """What came of each: bytes, or a negative errno. Pages that were read whole are filled.

        Raises TimeoutError when one has not come back by `deadline`.
        """
        results = [0] * self._waiting
        while self._waiting:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("3FS did not answer in time")
            for done in self._ring.wait(self._waiting, 1, timeout=timedelta(seconds=left_s)):
                generation, i = done.userdata
                if generation == self._generation:
                    results[i] = done.result
                    self._waiting -= 1
        size = self._record_bytes
        for i, result in enumerate(results):
            if self._is_read and result == size:
                pages[i][:] = self._bytes[i * size : (i + 1) * size]
        return results

    def close(self) -> None:
        self._ring = self._memory = None
        self._bytes.release()
        self._shared.close()
        self._shared.unlink()

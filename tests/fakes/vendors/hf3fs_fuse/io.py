"""Stand-in for `hf3fs_fuse.io` (USRBIO): the published names, on ordinary files.

Faults come from a JSON file that HF3FS_FAULTS names, read at each submit: `errno` (of every I/O),
`delay_s`, `short` (bytes that a read lacks), `only` ("read" or "write").
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, NamedTuple

_registered: set[int] = set()


class Result(NamedTuple):
    """What came of one I/O."""

    result: int
    userdata: Any


def register_fd(fd: int) -> None:
    os.fstat(fd)
    _registered.add(fd)


def deregister_fd(fd: int) -> None:
    _registered.discard(fd)


def extract_mount_point(path: str) -> str:
    return "/".join(os.path.realpath(path).split("/")[:3])


class iovec:  # noqa: N801  # its published name
    """Shared memory that I/O may use."""

    def __init__(self, shm: SharedMemory) -> None:
        self._buffer = shm.buf

    def __getitem__(self, part: slice) -> memoryview:
        return self._buffer[part]


def make_iovec(shm: SharedMemory, mount: str, block_size: int = 0, numa: int = -1) -> iovec:
    if not Path("/dev/shm", shm.name.lstrip("/")).exists():
        raise FileNotFoundError(shm.name)
    return iovec(shm)


def _faults() -> dict[str, Any]:
    path = os.environ.get("HF3FS_FAULTS", "")
    return json.loads(Path(path).read_text()) if path and Path(path).exists() else {}


class ioring:  # noqa: N801  # its published name
    """A ring: what was prepared is carried out by a thread a submit, in no order."""

    def __init__(self, entries: int, for_read: bool) -> None:
        self._entries, self._for_read = entries, for_read
        self._prepared: list[tuple[memoryview, int, int, Any]] = []
        self._done: deque[Result] = deque()
        self._changed = threading.Condition()

    def prepare(
        self, part: memoryview, for_read: bool, fd: int, offset: int, userdata: Any = None
    ) -> None:
        if for_read != self._for_read:
            raise ValueError("a ring of the other direction")
        if fd not in _registered:
            raise OSError(9, "the file is not registered")
        if len(self._prepared) >= self._entries:
            raise OSError(11, "the ring is full")
        self._prepared.append((part, fd, offset, userdata))

    def submit(self) -> ioring:
        batch, self._prepared = self._prepared, []
        threading.Thread(target=self._run, args=(batch, _faults()), daemon=True).start()
        return self

    def _run(self, batch: list[tuple[memoryview, int, int, Any]], faults: dict[str, Any]) -> None:
        if faults.get("only") not in (None, "read" if self._for_read else "write"):
            faults = {}
        time.sleep(faults.get("delay_s", 0))
        for part, fd, offset, userdata in reversed(batch):
            result = -faults.get("errno", 0)
            if not result:
                try:
                    move = os.preadv if self._for_read else os.pwritev
                    result = move(fd, [part], offset)
                except OSError as error:
                    result = -(error.errno or 5)
            if result > 0:
                result -= faults.get("short", 0)
            with self._changed:
                self._done.append(Result(result, userdata))
                self._changed.notify_all()

    def wait(
        self,
        max_results: int | None = None,
        min_results: int = 0,
        timeout: timedelta | None = None,
    ) -> Sequence[Result]:
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._done) >= min_results,
                timeout.total_seconds() if timeout is not None else None,
            )
            count = min(max_results or len(self._done), len(self._done))
            return [self._done.popleft() for _ in range(count)]


def make_ioring(
    mount: str,
    entries: int,
    for_read: bool = True,
    io_depth: int = 0,
    priority: int | None = None,
    timeout: int | None = None,
    numa: int = -1,
    flags: int = 0,
) -> ioring:
    return ioring(entries, for_read)

"""3FS as it runs in a process of its own (`isolated_child.py`)."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path

from hf3fs_fuse.io import deregister_fd, extract_mount_point, register_fd

from engine.cache.storage import allowed, folders, records
from engine.cache.storage.base import Site, Status, Storage, StorageError
from engine.cache.storage.hf3fs_index import SlotIndex
from engine.cache.storage.hf3fs_ring import Ring
from engine.protocol.storage_configs import Hf3fsConfig

_NO_ROOM = (-errno.ENOSPC, -errno.EDQUOT)
_LOST = (-errno.ENODATA, 0)  # a hole


class Hf3fsClient(Storage):
    """Slots of one file, and `numjobs` rings each way."""

    def __init__(self, config: Hf3fsConfig, site: Site) -> None:
        self._config, self._site = config, site
        self._fd = -1
        self._index: SlotIndex | None = None
        self._reads: list[Ring] = []
        self._writes: list[Ring] = []

    def open(self, deadline: float) -> None:
        slots = self._config.file_size // self._site.record_bytes
        if not slots:
            raise StorageError(
                f"file_size is {self._config.file_size} bytes; one page has "
                f"{self._site.record_bytes}"
            )
        try:
            self._open_files(self._path(), slots)
        except OSError as error:
            self.close(deadline)
            raise StorageError(f"file_path_prefix cannot be used: {error}") from error
        except StorageError:
            self.close(deadline)
            raise

    def _path(self) -> Path:
        prefix = Path(self._config.file_path_prefix)
        name = prefix.name or "quiesce"
        parent = str(prefix.parent) if self._config.file_path_prefix else ""
        root = allowed.made_folder(self._site, parent, "file_path_prefix")
        return folders.of_model(self._site, root) / f"{name}.rank-{self._site.dp_rank}.bin"

    def _open_files(self, path: Path, slots: int) -> None:
        self._index = SlotIndex(path.with_suffix(".index"), slots)
        try:
            fcntl.flock(self._index.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StorageError(f"{path.name} is in use by another process") from error
        size = self._site.record_bytes
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        self._index.load(os.fstat(self._fd).st_size // size)
        os.ftruncate(self._fd, slots * size)
        register_fd(self._fd)
        mount, entries = extract_mount_point(str(path)), self._config.entries
        for rings, is_read in ((self._reads, True), (self._writes, False)):
            rings += [
                Ring(mount, self._fd, entries, size, is_read=is_read)
                for _ in range(self._config.numjobs)
            ]

    def _opened(self) -> SlotIndex:
        assert self._index is not None, "a call before open"
        return self._index

    def _move(
        self, rings: Sequence[Ring], slots: Sequence[int], pages: Sequence[memoryview]
    ) -> list[int]:
        """Read or write all of them: bytes or a negative errno each. Raises TimeoutError."""
        results: list[int] = []
        deadline = time.monotonic() + self._config.client_timeout
        while len(results) < len(slots):
            begun: list[tuple[Ring, slice]] = []
            start = len(results)
            for ring in rings:
                part = slice(start, min(start + ring.entries, len(slots)))
                if part.start < part.stop:
                    ring.submit(slots[part], pages[part])
                    begun.append((ring, part))
                start = part.stop
            for ring, part in begun:
                results += ring.wait(pages[part], deadline)
        return results

    def batch_exists(self, keys: Sequence[bytes]) -> list[bool]:
        return [self._opened().find(key) is not None for key in keys]

    def batch_get(self, keys: Sequence[bytes], buffers: Sequence[memoryview]) -> list[Status]:
        index = self._opened()
        statuses = [Status.MISS] * len(keys)
        found = [(i, slot) for i, key in enumerate(keys) if (slot := index.find(key)) is not None]
        pages = [buffers[i] for i, _ in found]
        results = self._move(self._reads, [slot for _, slot in found], pages)
        for (i, slot), result in zip(found, results, strict=True):
            if result < 0 and result not in _LOST:
                statuses[i] = Status.ERROR
            elif result == self._site.record_bytes and index.is_still(keys[i], slot):
                # A log that was behind when its process ended names a page that was overwritten.
                head = records.header_key(buffers[i][: records.HEADER_BYTES])
                if head is None or head[0] == keys[i]:
                    statuses[i] = Status.OK
                else:
                    index.drop([keys[i]])
        return statuses

    def batch_put(self, keys: Sequence[bytes], records: Sequence[memoryview]) -> list[Status]:
        index = self._opened()
        statuses = [Status.OK] * len(keys)
        new: dict[bytes, int] = {}
        for i, key in enumerate(keys):
            if index.find(key) is None:
                new.setdefault(key, i)
        taken: list[tuple[int, int]] = []
        for i in new.values():
            slot = index.take()
            if slot is None:
                statuses[i] = Status.FULL
            else:
                taken.append((i, slot))
        slots = [slot for _, slot in taken]
        results = self._move(self._writes, slots, [records[i] for i, _ in taken])
        kept: list[bytes | None] = []
        for (i, _), result in zip(taken, results, strict=True):
            is_kept = result == self._site.record_bytes
            kept.append(keys[i] if is_kept else None)
            if not is_kept:
                statuses[i] = Status.FULL if result in _NO_ROOM else Status.ERROR
        if taken:
            index.give_back(slots, kept)
        return statuses

    def batch_delete(self, keys: Sequence[bytes]) -> None:
        self._opened().drop(keys)

    def clear(self, deadline: float) -> int:
        gone = self._opened().clear()
        os.ftruncate(self._fd, 0)
        os.ftruncate(self._fd, self._opened().slots * self._site.record_bytes)
        return gone

    def close(self, deadline: float) -> None:
        for ring in [*self._reads, *self._writes]:
            ring.close()
        self._reads, self._writes = [], []
        if self._fd >= 0:
            deregister_fd(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self._index is not None:
            self._index.close()
            self._index = None

"""Storage in a folder: `<root>/<model>-<identity>/rank-<dp_rank>/`, in packed segments.

Each rank writes into its own folder, which it holds locked, and reads all of them. A second
storage of the same process in the same folder, opened to take the place of the first, shares what
is open: the folder's limits are those of the one that was opened first. What survives a crash is
decided by each record's checksum. See also `file_segments.py`, `file_writer.py`, `file_index.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator, Sequence

from engine.cache.storage import allowed, file_segments
from engine.cache.storage.base import Site, Stats, Status, Storage, StorageError
from engine.cache.storage.file_index import FileIndex, Place
from engine.cache.storage.file_writer import NO_ROOM, SegmentWriter
from engine.protocol.storage_configs import FileConfig


class _Held:
    """One rank's folder, open and locked, for all storages of this process that use it."""

    def __init__(
        self, fds: list[int], index: FileIndex, writer: SegmentWriter, direct: int
    ) -> None:
        self.fds, self.index, self.writer, self.direct = fds, index, writer, direct
        self.writing = threading.Lock()
        self.users: list[FileStorage] = []


class _Spot:
    """Where a folder is held, if it is. One is opened or closed at a time; another folder on a disk
    that hangs is not waited for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.held: _Held | None = None

    @contextlib.contextmanager
    def taken(self, deadline: float) -> Iterator[None]:
        if not self.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise StorageError("the folder was being opened or closed for all of the time")
        try:
            yield
        finally:
            self.lock.release()


_SPOTS: dict[tuple[int, int], _Spot] = {}  # by device and inode of the folder


class FileStorage(Storage):
    """Packed segments in a folder."""

    def __init__(self, config: FileConfig, site: Site) -> None:
        self._config, self._site = config, site
        self._model_name = f"{site.model}-{site.identity.hex()[:8]}"
        self._rank_name = f"rank-{site.dp_rank}"
        self._index = FileIndex(site.record_bytes)
        self._writing = threading.Lock()
        self._writer: SegmentWriter | None = None
        self._fds: list[int] = []
        self._model_folder = self._folder = -1
        self._direct = 0
        self._held: _Held | None = None
        self._spot = _Spot()

    def open(self, deadline: float) -> None:
        if self._site.record_bytes > self._config.max_size:
            raise StorageError(
                f"max_size is {self._config.max_size} bytes; one page has {self._site.record_bytes}"
            )
        root = allowed.made_folder(self._site, self._config.file_storage_path, "file_storage_path")
        try:
            self._open_folders(str(root))
            found = os.fstat(self._folder)
            spot = _SPOTS.setdefault((found.st_dev, found.st_ino), _Spot())
            with spot.taken(deadline):
                self._hold(spot, deadline)
        except OSError as error:
            self.close(deadline)
            raise StorageError(f"{self._shown} cannot be used: {error.strerror}") from error
        except StorageError:
            self.close(deadline)
            raise

    def _hold(self, spot: _Spot, deadline: float) -> None:
        held = spot.held
        if held is None:
            self._lock()
            self._direct = file_segments.direct_flag(self._folder, self._config.direct_io)
            writer = self._load(deadline)
            held = spot.held = _Held(self._fds, self._index, writer, self._direct)
        else:
            self._close_files()
        held.users.append(self)
        self._held, self._spot = held, spot
        self._fds, self._writing = held.fds, held.writing
        self._index, self._writer, self._direct = held.index, held.writer, held.direct
        self._model_folder, self._folder = held.fds[1:3]

    @property
    def _shown(self) -> str:
        return f"the folder {self._model_name}/{self._rank_name} under file_storage_path"

    def _open_folders(self, root: str) -> None:
        parent = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        self._fds.append(parent)
        for name in (self._model_name, self._rank_name):
            # Made and opened one by one, so that no link leads out of the root.
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=parent)
            parent = file_segments.open_folder(name, parent)
            self._fds.append(parent)
        self._model_folder, self._folder = self._fds[-2:]

    def _lock(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        fd = os.open("LOCK", flags, 0o600, dir_fd=self._folder)
        self._fds.append(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StorageError(
                f"{self._shown} is in use by another process; give each engine its own "
                "file_storage_path"
            ) from error

    def _load(self, deadline: float) -> SegmentWriter:
        writer = SegmentWriter(
            self._folder,
            self._index,
            record_bytes=self._site.record_bytes,
            **self._limits,
            flags=self._direct,
        )
        writer.load(deadline)
        # What other ranks have is found by and by; half of what time is left is spent on it now.
        now = time.monotonic()
        until = min(now + 1.0, now + max(0.0, deadline - now) / 2)
        self._index.refresh(self._model_folder, self._rank_name, deadline=until)
        return writer

    @property
    def _limits(self) -> dict[str, int]:
        return {
            "max_bytes": self._config.max_size,
            "segment_bytes": self._config.segment_size,
            "min_free_bytes": self._config.min_free_space,
        }

    def batch_exists(self, keys: Sequence[bytes]) -> list[bool]:
        return [place is not None for place in self._find(keys)]

    def _find(self, keys: Sequence[bytes]) -> list[Place | None]:
        places = [self._index.find(key) for key in keys]
        if all(places) or not self._index.refresh(self._model_folder, self._rank_name):
            return places
        return [place or self._index.find(key) for place, key in zip(places, keys, strict=True)]

    def batch_get(self, keys: Sequence[bytes], buffers: Sequence[memoryview]) -> list[Status]:
        places = self._find(keys)
        statuses = [Status.MISS] * len(keys)
        errors: list[OSError] = []
        groups: dict[tuple[str, str], list[int]] = {}
        for i, place in enumerate(places):
            if place is not None:
                groups.setdefault((place.folder, place.segment.name), []).append(i)
        for members in groups.values():
            try:
                self._read_segment(members, places, buffers, statuses)
            except OSError as error:
                errors.append(error)
                for i in members:
                    if statuses[i] != Status.OK:
                        statuses[i] = Status.ERROR
        _raise_if_all_failed(statuses, errors)
        return statuses

    def _read_segment(
        self,
        members: Sequence[int],
        places: Sequence[Place | None],
        buffers: Sequence[memoryview],
        statuses: list[Status],
    ) -> None:
        first = places[members[0]]
        assert first is not None, "a group of pages without a place"
        try:
            with (
                self._rank_folder(first.folder) as folder,
                file_segments.opened(first.segment.name, folder, os.O_RDONLY | self._direct) as fd,
            ):
                for i in members:
                    place = places[i]
                    assert place is not None, "a group of pages without a place"
                    if file_segments.read(fd, place.slot, buffers[i]):
                        statuses[i] = Status.OK
                        self._index.mark_read(place)
        except FileNotFoundError:  # evicted meanwhile, or removed by someone
            self._index.drop_segment(first.folder, first.segment)

    @contextlib.contextmanager
    def _rank_folder(self, name: str) -> Iterator[int]:
        if not name:
            yield self._folder
            return
        fd = file_segments.open_folder(name, self._model_folder)
        try:
            yield fd
        finally:
            os.close(fd)

    def batch_put(self, keys: Sequence[bytes], records: Sequence[memoryview]) -> list[Status]:
        with self._writing:
            writer = self._opened_writer()
            statuses = [Status.OK] * len(keys)
            new: dict[bytes, int] = {}
            for i, key in enumerate(keys):
                if key not in new and not self._is_kept(key):
                    new[key] = i
            order = list(new.values())
            try:
                done = writer.append([keys[i] for i in order], [records[i] for i in order])
            except OSError as error:
                status = Status.FULL if error.errno in NO_ROOM else Status.ERROR
                for i in order:
                    if self._index.find(keys[i]) is None:
                        statuses[i] = status
                _raise_if_all_failed(statuses, [error])
            else:
                for i in order[done:]:
                    statuses[i] = Status.FULL
            return statuses

    def _is_kept(self, key: bytes) -> bool:
        """True for a page of ours, and for one of another rank whose file is still there."""
        place = self._index.find(key)
        if place is None or not place.folder:
            return place is not None
        try:
            with self._rank_folder(place.folder) as folder:
                os.stat(place.segment.name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            self._index.drop_segment(place.folder, place.segment)
            return False
        return True

    def _opened_writer(self) -> SegmentWriter:
        if self._writer is None:
            raise StorageError("the file storage is not open")
        return self._writer

    def batch_delete(self, keys: Sequence[bytes]) -> None:
        with self._writing:
            writer = self._opened_writer()
            for key in keys:
                for place in self._index.drop(key):
                    if not place.folder:  # Another rank's file is its own to change.
                        writer.strike(place.segment, place.slot)

    def clear(self, deadline: float) -> int:
        if not self._writing.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise StorageError("a write under way did not end in time; nothing was cleared")
        try:
            gone, left = self._opened_writer().clear()
        finally:
            self._writing.release()
        if left:
            raise StorageError(f"{left} files of {self._shown} could not be removed")
        return gone

    def close(self, deadline: float) -> None:
        held = self._held
        if held is None:
            self._close_files()
            return
        with self._spot.taken(deadline):
            self._held = None
            writer, self._writer = self._writer, None
            held.users.remove(self)
            if held.users:
                with held.writing:
                    held.writer.limit(**held.users[0]._limits)
                return
            self._spot.held = None
            if writer is not None:
                writer.seal()
            self._close_files()

    def _close_files(self) -> None:
        for fd in reversed(self._fds):  # The lock is let go first; no other file is open by now.
            os.close(fd)
        self._fds.clear()

    def stats(self) -> Stats:
        writer = self._writer
        return Stats(
            stored_pages=self._index.own_pages,
            used_bytes=writer.used_bytes if writer is not None else None,
            capacity_bytes=self._config.max_size,
        )


def _raise_if_all_failed(statuses: Sequence[Status], errors: Sequence[OSError]) -> None:
    """The cause is worth more than a list of ERROR, and nothing is lost by raising it."""
    if errors and all(status == Status.ERROR for status in statuses):
        raise errors[0]

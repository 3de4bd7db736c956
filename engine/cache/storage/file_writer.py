"""The writing half of the file backend: the segment that is filled, its size, and what is evicted.

One thread at a time. The room of all segments together never exceeds `max_size`; the oldest segment
goes as a whole, and its pages that were read since are written again. Where the disk is full,
segments get smaller, then the oldest own one makes room.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Sequence

from engine.cache.storage import file_segments
from engine.cache.storage.base import StorageError
from engine.cache.storage.file_index import FileIndex
from engine.cache.storage.file_segments import Segment

_SEGMENTS_AT_LEAST = 8  # of a store that is full: what one eviction takes is an eighth
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class SegmentWriter:
    """Own segments, oldest first. Every method may raise OSError; what was published stays so."""

    def __init__(
        self,
        folder: int,
        index: FileIndex,
        *,
        record_bytes: int,
        max_bytes: int,
        segment_bytes: int,
        min_free_bytes: int,
        flags: int,
    ) -> None:
        self._folder, self._index, self._flags = folder, index, flags
        self._record_bytes = record_bytes
        self._max_bytes, self._min_free_bytes = max_bytes, min_free_bytes
        self._segment_bytes = segment_bytes
        self._segments: list[Segment] = []
        self._fd = -1  # of the last segment, while it has room

    def limit(self, *, max_bytes: int, segment_bytes: int, min_free_bytes: int) -> None:
        """Other limits from now on."""
        before = self._max_bytes, self._segment_bytes, self._min_free_bytes
        if before == (max_bytes, segment_bytes, min_free_bytes):
            return
        self._max_bytes, self._segment_bytes = max_bytes, segment_bytes
        self._min_free_bytes = min_free_bytes
        self.seal()
        self._trim()

    def _trim(self) -> None:
        skipped: set[str] = set()
        while self.used_bytes > self._max_bytes and self._evict(skipped):
            pass

    @property
    def used_bytes(self) -> int:
        """Room of all own segments."""
        return sum(segment.slots for segment in tuple(self._segments)) * self._record_bytes

    @property
    def _target_slots(self) -> int:
        room = min(self._max_bytes, self.used_bytes + max(0, self._free_bytes()))
        share = min(self._segment_bytes, room // _SEGMENTS_AT_LEAST)
        return max(1, share // self._record_bytes)

    def _free_bytes(self) -> int:
        """Of the disk, above what is to be left free."""
        disk = os.fstatvfs(self._folder)
        return disk.f_bavail * disk.f_frsize - self._min_free_bytes

    def load(self, deadline: float) -> None:
        """Read the headers of what earlier processes left, and go on in the last segment.

        Raises StorageError when that is not done by `deadline`.
        """
        for name in file_segments.names(self._folder):
            if time.monotonic() > deadline:
                raise StorageError("the pages that are kept could not be listed in time")
            # Scanned through the page cache: headers are far smaller than a direct read.
            with file_segments.opened(name, self._folder) as fd:
                segment = Segment(name, os.fstat(fd).st_size // self._record_bytes)
                found = file_segments.scan(fd, self._record_bytes, 0, segment.slots)
            if any(found):
                self._index.add_own(segment, found)
                self._segments.append(segment)
            else:
                self._unlink(segment)
        self._trim()
        if self._segments and self._segments[-1].free_slots:
            last = self._segments[-1].name
            self._fd = os.open(last, os.O_RDWR | os.O_NOFOLLOW | self._flags, dir_fd=self._folder)

    def append(self, keys: Sequence[bytes], pages: Sequence[memoryview]) -> int:
        """Write as many as there is room for; how many those were, from the first on."""
        done = 0
        while done < len(keys):
            if not self._has_room():
                break
            segment = self._segments[-1]
            count = min(segment.free_slots, len(keys) - done)
            self._write(segment, keys[done : done + count], pages[done : done + count])
            done += count
        return done

    def _write(self, segment: Segment, keys: Sequence[bytes], pages: Sequence[memoryview]) -> None:
        try:
            file_segments.write(self._fd, len(segment.keys), pages)
        except OSError as error:
            if error.errno in NO_ROOM:  # a disk that reserves nothing: this segment ends here
                self._end(segment)
            raise
        self._index.add_own(segment, list(keys))

    def _has_room(self) -> bool:
        if self._fd >= 0 and self._segments and self._segments[-1].free_slots:
            if os.fstat(self._fd).st_nlink:
                return True
            self.lost(self._segments[-1])  # Someone has removed the file under us.
        return self._rotate()

    def _rotate(self) -> bool:
        """Begin a new segment, evicting what must go; False when there is no room for a page."""
        self.seal()
        skipped: set[str] = set()
        target = slots = self._target_slots
        while not self._begin(slots):
            if slots > 1 and not self._is_capped(slots):
                slots //= 2
            elif self._evict(skipped):
                slots = target
            elif slots > 1:
                slots //= 2
            else:
                return False
        # Room for the segment after this one, so that its pages can move before theirs is freed.
        while (
            self._is_capped(target) and len(self._segments) > 1 and self._evict(skipped, move=True)
        ):
            pass
        return True

    def _is_capped(self, slots: int) -> bool:
        return self.used_bytes + slots * self._record_bytes > self._max_bytes

    def _begin(self, slots: int) -> bool:
        size = slots * self._record_bytes
        if self._is_capped(slots) or self._free_bytes() < size:
            return False
        name = file_segments.next_name(
            [segment.name for segment in self._segments] + file_segments.names(self._folder)
        )
        try:
            self._fd = file_segments.create(name, self._folder, size, self._flags)
        except OSError as error:
            if error.errno in NO_ROOM:
                return False
            raise
        self._segments.append(Segment(name, slots))
        return True

    def _evict(self, skipped: set[str], *, move: bool = False) -> bool:
        """Remove the oldest segment that can be removed; False without one."""
        for segment in [*self._segments]:
            is_written = self._fd >= 0 and segment is self._segments[-1]
            if segment.name in skipped or is_written:
                continue
            if move:
                self._move(segment)
            if self._unlink(segment):
                self._index.drop_segment("", segment)
                self._segments.remove(segment)
                return True
            skipped.add(segment.name)  # A file that cannot be removed does not stop the others.
        return False

    def _move(self, segment: Segment) -> None:
        """Write its pages again that were read, up to half of the new segment."""
        target = self._segments[-1]
        read = self._index.live_slots(segment)[: target.slots // 2]
        if not read:
            return
        page = file_segments.aligned(self._record_bytes)
        # A page that cannot be read or written again is evicted like the rest.
        with (
            contextlib.suppress(OSError),
            file_segments.opened(segment.name, self._folder, self._flags) as fd,
        ):
            for slot, key in read:
                if not target.free_slots:
                    return
                if file_segments.read(fd, slot, page):
                    self._write(target, [key], [page])

    def _unlink(self, segment: Segment) -> bool:
        try:
            os.unlink(segment.name, dir_fd=self._folder)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def lost(self, segment: Segment) -> None:
        """A segment's file is not there any more."""
        if self._segments and segment is self._segments[-1]:
            self.seal()
        self._index.drop_segment("", segment)
        if segment in self._segments:
            self._segments.remove(segment)

    def strike(self, segment: Segment, slot: int) -> None:
        """Make a page unreadable, also for those who scan later."""
        with (
            contextlib.suppress(FileNotFoundError),
            file_segments.opened(segment.name, self._folder, os.O_RDWR | self._flags) as fd,
        ):
            file_segments.strike(fd, slot, self._record_bytes)

    def clear(self) -> tuple[int, int]:
        """Remove all own segments: how many pages went, and how many files could not be removed."""
        self.seal()
        gone = 0
        for segment in [*self._segments]:
            if self._unlink(segment):
                gone += self._index.drop_segment("", segment)
                self._segments.remove(segment)
        return gone, len(self._segments)

    def _end(self, segment: Segment) -> None:
        """Give back the room behind its last page."""
        segment.slots = len(segment.keys)
        os.ftruncate(self._fd, segment.slots * self._record_bytes)
        self.seal()

    def seal(self) -> None:
        """Write no more to the last segment."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

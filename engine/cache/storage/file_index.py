"""Where each page of the file backend lies: this rank's segments, and those of the other ranks.

Threads: every method may be called from any thread; the lock is never held over I/O of segments.
Other ranks' segments are found by listing their folders and reading the headers that were added;
that is limited in how often it is done and how long it may take.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from dataclasses import dataclass, field

from engine.cache.storage import file_segments
from engine.cache.storage.file_segments import Segment

_RANK_FOLDER = re.compile(r"rank-\d{1,6}")
REFRESH_EVERY_S = 0.2
REFRESH_BUDGET_S = 0.2
_SCAN_SLOTS = 512  # between two looks at the clock


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record lies. `folder` is "" for this rank's own."""

    folder: str
    segment: Segment
    slot: int


@dataclass(slots=True)
class _Neighbour:
    """What is known of another rank's folder."""

    segments: dict[str, Segment] = field(default_factory=dict)


class FileIndex:
    """key → place. Own places come before others."""

    def __init__(self, record_bytes: int) -> None:
        self._record_bytes = record_bytes
        self._lock = threading.Lock()
        self._own: dict[bytes, Place] = {}
        self._others: dict[bytes, Place] = {}
        self._neighbours: dict[str, _Neighbour] = {}
        self._refreshing = threading.Lock()
        self._refreshed_at = float("-inf")

    @property
    def own_pages(self) -> int:
        return len(self._own)

    def find(self, key: bytes) -> Place | None:
        with self._lock:
            return self._own.get(key) or self._others.get(key)

    def mark_read(self, place: Place) -> None:
        """Keep it longer, if it is this rank's."""
        if not place.folder:
            with self._lock:
                place.segment.read_slots.add(place.slot)

    def add_own(self, segment: Segment, keys: list[bytes | None]) -> None:
        """The next slots of an own segment hold these."""
        with self._lock:
            for slot, key in enumerate(keys, len(segment.keys)):
                segment.keys.append(key)
                if key is not None:
                    self._own[key] = Place("", segment, slot)

    def drop(self, key: bytes) -> list[Place]:
        """Forget a key; where it was."""
        with self._lock:
            gone = [
                place for place in (self._own.pop(key, None), self._others.pop(key, None)) if place
            ]
            for place in gone:
                place.segment.keys[place.slot] = None
        return gone

    def drop_segment(self, folder: str, segment: Segment) -> int:
        """Forget what lies in a segment; how many pages that were."""
        with self._lock:
            if folder and folder in self._neighbours:
                self._neighbours[folder].segments.pop(segment.name, None)
            return self._forget(segment)

    def _forget(self, segment: Segment) -> int:
        gone = 0
        for key in segment.keys:
            for places in (self._own, self._others):
                if key is not None and key in places and places[key].segment is segment:
                    del places[key]
                    gone += 1
        return gone

    def live_slots(self, segment: Segment) -> list[tuple[int, bytes]]:
        """Slots of an own segment that were read since they were written, and still count."""
        with self._lock:
            return [
                (slot, key)
                for slot in sorted(segment.read_slots)
                if (key := segment.keys[slot]) is not None
                and key in self._own
                and self._own[key].segment is segment
            ]

    def refresh(self, model_folder: int, own: str, *, deadline: float | None = None) -> bool:
        """Look at what other ranks have added and removed; False where it was just done.

        Takes REFRESH_BUDGET_S at most, or goes on until `deadline`; the next one continues.
        """
        if not self._refreshing.acquire(blocking=False):
            return False
        try:
            if deadline is None and time.monotonic() - self._refreshed_at < REFRESH_EVERY_S:
                return False
            until = deadline if deadline is not None else time.monotonic() + REFRESH_BUDGET_S
            try:
                present = {n for n in os.listdir(model_folder) if _RANK_FOLDER.fullmatch(n)} - {own}
                for name in sorted(present | set(self._neighbours)):
                    self._refresh_rank(name, model_folder, until)
            finally:
                self._refreshed_at = time.monotonic()
            return True
        finally:
            self._refreshing.release()

    def _refresh_rank(self, name: str, model_folder: int, until: float) -> None:
        known = self._neighbours.setdefault(name, _Neighbour())
        try:
            folder = file_segments.open_folder(name, model_folder)
        except OSError:  # It is gone, or no folder: nothing of it can be read.
            present: list[str] = []
            folder = -1
        try:
            if folder >= 0:
                present = file_segments.names(folder)
            for segment in [s for n, s in list(known.segments.items()) if n not in set(present)]:
                self.drop_segment(name, segment)
            for path in present:
                if time.monotonic() > until:
                    return
                # A segment that vanishes meanwhile is dropped by the next refresh.
                with contextlib.suppress(FileNotFoundError):
                    self._refresh_segment(known, name, path, folder, until)
        finally:
            if folder >= 0:
                os.close(folder)

    def _refresh_segment(
        self, known: _Neighbour, rank: str, name: str, folder: int, until: float
    ) -> None:
        segment = known.segments.get(name)
        if segment is not None and not segment.free_slots:
            return
        with file_segments.opened(name, folder) as fd:
            if segment is None:
                slots = os.fstat(fd).st_size // self._record_bytes
                if not slots:  # just made, its room not reserved yet
                    return
                segment = known.segments.setdefault(name, Segment(name, slots))
            while segment.free_slots and time.monotonic() < until:
                first = len(segment.keys)
                last = min(segment.slots, first + _SCAN_SLOTS)
                found = file_segments.scan(fd, self._record_bytes, first, last)
                with self._lock:
                    segment.keys += found
                    for slot, key in enumerate(found, first):
                        if key is not None:
                            self._others[key] = Place(rank, segment, slot)
                if len(found) < last - first:
                    return

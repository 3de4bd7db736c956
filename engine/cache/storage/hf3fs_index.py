"""Which slot of the file holds which page: in memory, and in a log beside the file.

SGLang keeps this in a service of its own, for ranks that share files. Here each rank has its file,
so a log of what was written is enough: it is appended to after a write has come back, and a tail
that a crash has torn is left out. It may be behind the file; the key in a record decides.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path

from engine.cache.storage.base import KEY_BYTES

_ENTRY = struct.Struct(f"<I{KEY_BYTES}sI")  # slot, key, crc32 of both
_NOTHING = bytes(KEY_BYTES)  # the key of a slot that was given up


class SlotIndex:
    """key → slot, for `slots` of them. Raises OSError where it writes its log."""

    def __init__(self, path: Path, slots: int) -> None:
        self._path, self.slots = path, slots
        self._lock = threading.Lock()
        self._slot_of: dict[bytes, int] = {}
        self._key_of: list[bytes] = [b""] * slots
        self._was_read = bytearray(slots)
        self._busy: set[int] = set()  # being written
        self._hand = 0  # where the search for a slot goes on
        self._logged = 0
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)

    @property
    def pages(self) -> int:
        return len(self._slot_of)

    def load(self, written_slots: int) -> None:
        """Read the log, up to what a crash has torn; slots from `written_slots` on are gone."""
        content = self._path.read_bytes()
        for at in range(0, len(content) - _ENTRY.size + 1, _ENTRY.size):
            slot, key, check = _ENTRY.unpack_from(content, at)
            if check != zlib.crc32(content[at : at + _ENTRY.size - 4]):
                break
            self._logged += 1
            if slot < min(self.slots, written_slots):
                self._place(slot, b"" if key == _NOTHING else key)
        if self._logged * _ENTRY.size != len(content) or self._logged > 2 * self.slots:
            self._rewrite()

    def _place(self, slot: int, key: bytes) -> None:
        before = self._key_of[slot]
        if before and self._slot_of.get(before) == slot:
            del self._slot_of[before]
        elsewhere = self._slot_of.get(key) if key else None
        if elsewhere is not None:
            self._key_of[elsewhere] = b""
        self._key_of[slot] = key
        if key:
            self._slot_of[key] = slot

    def _rewrite(self) -> None:
        entries = [_packed(slot, key) for key, slot in self._slot_of.items()]
        os.ftruncate(self.fd, 0)
        os.write(self.fd, b"".join(entries))
        self._logged = len(entries)

    def _log(self, entries: Sequence[bytes]) -> None:
        os.write(self.fd, b"".join(entries))
        self._logged += len(entries)
        if self._logged > 4 * self.slots + 1024:
            self._rewrite()

    def find(self, key: bytes) -> int | None:
        with self._lock:
            return self._slot_of.get(key)

    def is_still(self, key: bytes, slot: int) -> bool:
        """True if the slot has not been given to another page since; it counts as read."""
        with self._lock:
            is_same = self._slot_of.get(key) == slot
            self._was_read[slot] |= is_same
            return is_same

    def take(self) -> int | None:
        """A slot to write to: the next one that was not read since it was passed last."""
        with self._lock:
            for _ in range(2 * self.slots):
                slot, self._hand = self._hand, (self._hand + 1) % self.slots
                if slot in self._busy:
                    continue
                if self._key_of[slot] and self._was_read[slot]:
                    self._was_read[slot] = 0
                    continue
                self._busy.add(slot)
                self._place(slot, b"")
                return slot
            return None

    def give_back(self, slots: Sequence[int], keys: Sequence[bytes | None]) -> None:
        """These were written, and hold these pages now; None for one that failed."""
        with self._lock:
            for slot, key in zip(slots, keys, strict=True):
                self._busy.discard(slot)
                self._place(slot, key or b"")
                self._was_read[slot] = 0
            self._log([_packed(slot, key or b"") for slot, key in zip(slots, keys, strict=True)])

    def drop(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            gone = [self._slot_of[key] for key in keys if key in self._slot_of]
            for slot in gone:
                self._place(slot, b"")
            if gone:
                self._log([_packed(slot, b"") for slot in gone])

    def clear(self) -> int:
        with self._lock:
            gone = len(self._slot_of)
            self._slot_of.clear()
            self._key_of = [b""] * self.slots
            self._rewrite()
            return gone

    def close(self) -> None:
        os.close(self.fd)


def _packed(slot: int, key: bytes) -> bytes:
    entry = _ENTRY.pack(slot, key or _NOTHING, 0)
    return entry[:-4] + struct.pack("<I", zlib.crc32(entry[:-4]))

"""The journal on disk: append-only, each record length + crc32 + msgpack, each append fdatasync'ed.

Room for the records of one operation is reserved before it starts, so a disk that fills meanwhile
cannot keep its end from being written. A torn tail is cut at load; a journal that cannot be written
refuses operations. One process at a time holds it (flock).

The checksum is zlib's CRC-32, not CRC-32C: docs/decisions/0003.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import struct
import uuid
import zlib
from pathlib import Path

import msgspec

from engine.frontend.journal_records import (
    EpochRecord,
    Finished,
    Identity,
    JournalFullError,
    JournalIndex,
    Record,
    Sealed,
)
from engine.ipc.messages import ServingState

_HEADER = struct.Struct("<II")  # length, crc32 of the payload; length 0 ends the file
_MAX_RECORD_BYTES = 1 << 20
_MAX_FIRST_BYTES = 512  # the first record is an identity
_RESERVE_BYTES = 256 * 1024  # the records of one operation
_RESERVE_AT_ONCE = 4 * _RESERVE_BYTES  # a few hundred usual ones: each reservation is synced
_COMPACT_BYTES = 64 << 20
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Record)


class JournalError(RuntimeError):
    """The journal cannot be used at all: held by another process, or of a newer format."""


class Journal:
    """One engine's journal. `index` always equals what is on disk."""

    def __init__(self, path: str, *, initial: ServingState, memo_size: int = 10_000) -> None:
        self._path = Path(path)
        self._initial = initial
        self._memo_size = memo_size
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(f"cannot open the journal {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise JournalError(f"another engine holds the journal {path}") from error
        self.index = JournalIndex(initial=initial, memo_size=memo_size)
        self._end = 0
        self._reserved = 0
        self._compact_at = _COMPACT_BYTES
        try:
            self._load()
        except JournalError:
            os.close(self._fd)
            raise
        if not self.index.engine_id:
            self.append(Identity(engine_id=str(uuid.uuid4())))
            _sync_folder(self._path.parent)

    def close(self) -> None:
        """Release the file."""
        os.close(self._fd)

    def begin_epoch(self) -> EpochRecord:
        """Record a new start. Raises JournalFullError."""
        number = self.index.epoch.number + 1 if self.index.epoch else 1
        record = EpochRecord(number=number, nonce=secrets.token_hex(8))
        self._compact_if_long()
        self.append(record)
        return record

    def reserve(self) -> None:
        """Make sure that the records of one operation will fit. Raises JournalFullError."""
        self._compact_if_long()
        if self._reserved >= self._end + _RESERVE_BYTES:
            return
        try:
            size = self._allocate()
            os.fsync(self._fd)
        except OSError as error:
            raise _full(error) from error
        self._reserved = self._end + size

    def _allocate(self) -> int:
        """How much room there is now; less on a disk that is nearly full, but enough for one."""
        try:
            os.posix_fallocate(self._fd, self._end, _RESERVE_AT_ONCE)
        except OSError:
            os.posix_fallocate(self._fd, self._end, _RESERVE_BYTES)
            return _RESERVE_BYTES
        return _RESERVE_AT_ONCE

    def append(self, record: Record, *, sync: bool = True) -> None:
        """Make one record durable, then visible in the index. Raises JournalFullError."""
        payload = _encode(record)
        if len(payload) > _MAX_RECORD_BYTES:  # it could not be read again, nor what is behind it
            raise _full(OSError(errno.EFBIG, "a record is too long"))
        frame = _HEADER.pack(len(payload), zlib.crc32(payload)) + payload
        try:
            _write_all(self._fd, frame, self._end)
            if sync:
                os.fdatasync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):  # the length decides: without it nothing was said
                os.pwrite(self._fd, b"\0" * _HEADER.size, self._end)
            raise _full(error) from error
        self._end += len(frame)
        self.index.apply(record)

    def _load(self) -> None:
        data = self._path.read_bytes()
        offset = 0
        while offset + _HEADER.size <= len(data):
            length, crc = _HEADER.unpack_from(data, offset)
            payload = data[offset + _HEADER.size : offset + _HEADER.size + length]
            if not 0 < length <= _MAX_RECORD_BYTES or len(payload) < length:
                break
            if zlib.crc32(payload) != crc:
                break
            try:
                record = _decoder.decode(payload)
            except msgspec.DecodeError as error:
                raise JournalError(
                    f"journal {self._path} holds a record this version does not know: {error}"
                ) from error
            self.index.apply(record)
            offset += _HEADER.size + length
        self._end = offset
        is_torn = bool(data[offset:].strip(b"\0"))
        if is_torn and _is_damaged(data, offset):
            raise JournalError(
                f"journal {self._path} is damaged at byte {offset}: restore it, or move it away to "
                "start as another engine"
            )
        if is_torn:  # nothing of this tail was ever acknowledged
            os.ftruncate(self._fd, offset)
            os.fsync(self._fd)
        # What is behind the end may be a hole in a copied file: it is reserved anew.

    def _compact_if_long(self) -> None:
        """Between operations. Without room for a second file the first one just grows on."""
        if self._end <= self._compact_at:
            return
        try:
            self._compact()
        except OSError:
            self._path.with_suffix(".new").unlink(missing_ok=True)
        self._compact_at = max(2 * self._end, _COMPACT_BYTES)

    def _compact(self) -> None:
        """Rewrite with what is still remembered; a crash leaves the old file or the new one."""
        index, temp = self.index, self._path.with_suffix(".new")
        temp.unlink(missing_ok=True)
        new = Journal.__new__(Journal)
        new._path, new._initial, new._memo_size = temp, self._initial, self._memo_size
        new._fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(new._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.index = JournalIndex(initial=self._initial, memo_size=self._memo_size)
        new._end = new._reserved = 0
        kept: list[Record | None] = [
            Identity(engine_id=index.engine_id, forgotten_until_ms=index.forgotten_until_ms),
            index.epoch,
            index.adopted,
            *(Sealed(op_id=op_id) for op_id in index.sealed),
            *(
                Finished(op=index.last_ended_op, desired=index.desired, result=result)
                for result in index.results.values()
            ),
            index.open,
            index.decided,
        ]
        try:
            for record in kept:
                if record is not None:
                    new.append(record, sync=False)
            os.fsync(new._fd)
            temp.replace(self._path)
        except OSError:
            os.close(new._fd)
            raise
        _sync_folder(self._path.parent)
        os.close(self._fd)
        self._fd, self._end, self._reserved, self.index = new._fd, new._end, 0, new.index


def _is_damaged(data: bytes, offset: int) -> bool:
    """True when more follows than one append can have left behind, torn: cutting loses records."""
    if offset == 0:
        return any(data[_MAX_FIRST_BYTES:])  # this was never a journal
    for start in range(offset + 1, min(len(data), offset + _MAX_RECORD_BYTES) - _HEADER.size):
        length, crc = _HEADER.unpack_from(data, start)
        if 0 < length <= len(data) - start - _HEADER.size:
            payload = data[start + _HEADER.size : start + _HEADER.size + length]
            if length > 1 and zlib.crc32(payload) == crc:
                return True
    return False


def _write_all(fd: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _full(error: OSError) -> JournalFullError:
    return JournalFullError(error.errno, f"journal: {os.strerror(error.errno or 0)}")

"""Packed segments of the file backend: fixed-size records, one after another, in one file.

Knows a folder by its descriptor and never follows a link. A record's payload is written before its
header, so a rank that scans meanwhile, or a process killed in between, never leaves a header before
a payload that is not whole; what a power cut leaves is found by the checksum when it is read. There
is no fsync: this is a cache.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engine.cache.storage import records
from engine.cache.storage.base import ALIGNMENT_BYTES, StorageError

# Names are never used twice: a rank that read an old listing cannot mistake one file for another.
SEGMENT_NAME = re.compile(r"(\d{10})-[0-9a-f]{8}\.seg")
_PROBE_NAME = re.compile(r"probe-[0-9a-f]{8}\.tmp")
_DELETED = b"QKVX" + bytes(ALIGNMENT_BYTES - 4)
_NO_HEADER = bytes(ALIGNMENT_BYTES)
_MAX_RUN = 256  # records of one pwritev: two views each, below IOV_MAX


@dataclass(slots=True, eq=False)
class Segment:
    """One file. `keys[i]` is the key of slot i; None once it was deleted."""

    name: str
    slots: int
    keys: list[bytes | None] = field(default_factory=list)
    read_slots: set[int] = field(default_factory=set)  # since it was written: they are kept longer

    @property
    def free_slots(self) -> int:
        return self.slots - len(self.keys)


def names(folder: int) -> list[str]:
    """Segments in a folder, oldest first."""
    found = [name for name in os.listdir(folder) if SEGMENT_NAME.fullmatch(name)]
    return sorted(name for name in found if _is_file(name, folder))


def _is_file(name: str, folder: int) -> bool:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:  # gone meanwhile
        return False
    return stat.S_ISREG(found.st_mode)


def next_name(taken: Sequence[str]) -> str:
    number = 1 + max((int(name[:10]) for name in taken), default=0)
    return f"{number:010d}-{secrets.token_hex(4)}.seg"


def open_folder(name: str, parent: int) -> int:
    """A descriptor of a folder that is no link. Raises OSError."""
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)


@contextlib.contextmanager
def opened(name: str, folder: int, flags: int = os.O_RDONLY) -> Iterator[int]:
    """A segment's descriptor, closed at the end. Raises OSError, also for what is no file: opening
    a FIFO of that name would wait for ever."""
    fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", name)
        yield fd
    finally:
        os.close(fd)


def create(name: str, folder: int, size_bytes: int, flags: int) -> int:
    """A new segment with its room reserved; a descriptor to write it. Raises OSError (ENOSPC),
    leaving no file."""
    fd = os.open(
        name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | flags, 0o600, dir_fd=folder
    )
    try:
        try:
            os.posix_fallocate(fd, 0, size_bytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            os.ftruncate(fd, size_bytes)
    except OSError:
        os.close(fd)
        os.unlink(name, dir_fd=folder)
        raise
    return fd


def scan(fd: int, record_bytes: int, first: int, last: int) -> list[bytes | None]:
    """Keys of the slots from `first` up to the first one that holds no whole header."""
    found: list[bytes | None] = []
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    for slot in range(first, last):
        if (slot - first) % 64 == 0:  # A cold disk is asked for many headers at once.
            for ahead in range(slot, min(slot + 64, last)):
                offset = ahead * record_bytes
                os.posix_fadvise(fd, offset, ALIGNMENT_BYTES, os.POSIX_FADV_WILLNEED)
        head = os.pread(fd, records.HEADER_BYTES, slot * record_bytes)
        if head.startswith(_DELETED[:4]):
            found.append(None)
            continue
        known = records.header_key(head)
        if known is None or records.record_bytes(known[1]) != record_bytes:
            break
        found.append(known[0])
    return found


def write(fd: int, slot: int, pages: Sequence[memoryview]) -> None:
    """Write records into the slots from `slot` on. Raises OSError; then a scan ends there."""
    record_bytes = len(pages[0])
    for start in range(0, len(pages), _MAX_RUN):
        run = pages[start : start + _MAX_RUN]
        views = [view for page in run for view in (_blank(), page[ALIGNMENT_BYTES:]) if len(view)]
        offset = (slot + start) * record_bytes
        _write_all(fd, views, offset)
        for page in run:
            _write_all(fd, [page[:ALIGNMENT_BYTES]], offset)
            offset += record_bytes


def read(fd: int, slot: int, page: memoryview) -> bool:
    """Read a record; False for a file that ends before it does. Raises OSError."""
    done = 0
    while done < len(page):
        count = os.preadv(fd, [page[done:]], slot * len(page) + done)
        if count == 0:
            return False
        done += count
    return True


def strike(fd: int, slot: int, record_bytes: int) -> None:
    """Mark a slot as deleted. Raises OSError."""
    block = aligned(ALIGNMENT_BYTES)
    block[:] = _DELETED
    _write_all(fd, [block], slot * record_bytes)


def aligned(size_bytes: int) -> memoryview:
    """Memory for direct I/O; freed with its last view."""
    return memoryview(mmap.mmap(-1, size_bytes))


_blank_block: list[memoryview] = []


def _blank() -> memoryview:
    if not _blank_block:
        _blank_block.append(aligned(ALIGNMENT_BYTES))
    return _blank_block[0]


def _write_all(fd: int, views: list[memoryview], offset: int) -> None:
    while views:
        count = os.pwritev(fd, views, offset)
        if count <= 0:
            raise OSError(errno.EIO, "a write wrote nothing")
        offset += count
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if count:
            views[0] = views[0][count:]


def direct_flag(folder: int, wanted: str) -> int:
    """O_DIRECT where it works in this folder, found by writing and reading a block; else 0.

    Raises StorageError when `wanted` is "on" and it does not, OSError when nothing can be written.
    """
    if wanted == "off":
        return 0
    for name in os.listdir(folder):
        if _PROBE_NAME.fullmatch(name):  # of a process that was killed meanwhile
            os.unlink(name, dir_fd=folder)
    name = f"probe-{secrets.token_hex(4)}.tmp"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        fd = os.open(name, flags | os.O_DIRECT, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.EINVAL:  # a file system without it; some create the file first
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            return _without_direct(wanted)
        raise
    try:
        os.unlink(name, dir_fd=folder)
        block = aligned(ALIGNMENT_BYTES)
        works = os.pwritev(fd, [block], 0) == os.preadv(fd, [block], 0) == ALIGNMENT_BYTES
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSPC):
            raise
        works = False
    finally:
        os.close(fd)
    return os.O_DIRECT if works else _without_direct(wanted)


def _without_direct(wanted: str) -> int:
    if wanted == "on":
        raise StorageError("this folder's disk takes no direct I/O; set direct_io to auto or off")
    return 0

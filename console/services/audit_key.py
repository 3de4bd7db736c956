"""The key that signs heads and exports of the audit log, and the file of signed heads.

Both are files outside the database, so that who can write there cannot make a new chain look old.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any  # a record is any JSON object

from django.conf import settings

from console.exceptions import AuditUnavailable
from console.signing import Signed, Signer, SigningError, opened


def signer() -> Signer:
    """The console's key. Raises AuditUnavailable."""
    try:
        return Signer.read(settings.AUDIT_KEY_FILE)
    except SigningError as error:
        raise AuditUnavailable(f"the audit log's key cannot be used: {error}") from error


def key_make() -> None:
    """Make the key and its public half, if they are not there."""
    path: Path = settings.AUDIT_KEY_FILE
    if not path.exists():
        beside = path.with_name(f".{path.name}.new")
        key_write(Signer.new(), beside)
        # Never over one that another process has just made: its signatures would be nobody's.
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)
        beside.unlink()
    public_half_write()


def key_write(key: Signer, path: Path) -> None:
    """To a file of mode 0600, on the disk when it returns."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(key.private_pem())
        file.flush()
        os.fsync(file.fileno())


def folder_sync(path: Path) -> None:
    """What was made or replaced in the folder is there after a power cut. Raises OSError."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def public_half_write() -> None:
    """Beside the key."""
    settings.AUDIT_KEY_FILE.with_suffix(".pub").write_text(signer().public_pem)


@contextlib.contextmanager
def anchors_held() -> Iterator[Anchors]:
    """The file of anchors, for one writer at a time. Raises AuditUnavailable."""
    path: Path = settings.AUDIT_ANCHORS_FILE
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise AuditUnavailable(f"{path.name} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield Anchors(fd, path.name)
    finally:
        os.close(fd)


def anchors_check() -> None:
    """Could a head be signed now? Raises AuditUnavailable."""
    with anchors_held() as anchors:
        anchors.last()
    signer()


_TAIL_BYTES = 8192  # far more than a line


class Anchors:
    """The file, open and locked."""

    def __init__(self, fd: int, name: str) -> None:
        self._fd, self._name = fd, name

    def last(self) -> tuple[dict[str, Any] | None, str]:
        """The newest anchor and the SHA-256 of its line, 64 zeros for none. Raises
        AuditUnavailable for one behind which this console's key is not in force."""
        signed, digest = self.newest()
        if signed is not None and signed.next_key != signer().public_hex:
            raise AuditUnavailable("the audit log's key was replaced; this is the former one")
        return signed.record if signed is not None else None, digest

    def newest(self) -> tuple[Signed | None, str]:
        """The newest line and its SHA-256. Raises AuditUnavailable for one that this console's key
        did not sign; what a crash left unfinished is cut."""
        size = os.fstat(self._fd).st_size
        start = max(0, size - _TAIL_BYTES)
        tail = os.pread(self._fd, size - start, start)
        kept = tail[: tail.rfind(b"\n") + 1]
        if len(kept) < len(tail):
            os.ftruncate(self._fd, start + len(kept))
        if not kept:
            return None, "0" * 64
        line = kept[kept.rfind(b"\n", 0, -1) + 1 :]
        signed = opened(line[:-1])
        if signed is None or signer().public_hex not in (signed.key, signed.next_key):
            raise AuditUnavailable(f"the last line of {self._name} is not signed by this console")
        return signed, hashlib.sha256(line).hexdigest()

    def append(self, record: dict[str, Any]) -> None:
        """Sign and keep, on the disk when it returns. Raises AuditUnavailable."""
        content = (signer().sign(record) + "\n").encode()
        try:
            if os.write(self._fd, content) != len(content):
                raise OSError("the disk is full")
            os.fsync(self._fd)
        except OSError as error:
            raise AuditUnavailable(f"{self._name} cannot be written: {error}") from error

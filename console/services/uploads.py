"""Take files of weights in pieces, keep them by SHA-256, and clear away what nobody needs.

A piece says where it begins: one that came already changes nothing, one out of place is refused
with the place to go on from. So a broken upload goes on where it stopped, in any process.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

import structlog
from django.conf import settings
from django.db import IntegrityError, transaction

from console.access import Act
from console.actors import Actor
from console.choices import AuditStage
from console.clock import db_now
from console.exceptions import Conflict, Invalid, NotFound, Unavailable
from console.models import Upload
from console.params import JobParams, TensorParams
from console.safetensors import BadSafetensors, header_check
from console.selectors.uploads import (
    part_path,
    upload_get,
    upload_offset,
    upload_path,
    uploads_dir,
    uploads_in_use,
    uploads_named,
)
from console.services.audit import audit_append

log = structlog.get_logger(__name__)

COPY_BYTES = 1 << 20
PART_KEEP_S = 24 * 3600
_NAME = re.compile(r"^[0-9A-Za-z_][0-9A-Za-z_.-]{0,200}\.safetensors$")  # as the engine takes it
_SHA256 = re.compile(r"^[0-9a-f]{64}$")


def _sizes_check(name: str, size_bytes: int) -> None:
    if not _NAME.fullmatch(name):
        raise Invalid("name must be letters, digits, _ . - and end in .safetensors")
    if not 8 <= size_bytes <= settings.UPLOAD_MAX_BYTES:
        raise Invalid(
            f"size_bytes must be from 8 to {settings.UPLOAD_MAX_BYTES}, this console's limit"
        )


def _note(upload: Upload, action: str, actor: Actor, now: datetime) -> None:
    audit_append(
        action=action,
        stage=AuditStage.NOTE,
        actor=actor,
        now=now,
        process="web",
        facts={
            "object": f"upload {upload.name}",
            "sha256": upload.sha256,
            "size_bytes": upload.size_bytes,
            "num_tensors": upload.num_tensors,
        },
    )


@transaction.atomic
def upload_begin(
    *, name: str, size_bytes: int, actor: Actor, sha256: str = "", now: datetime | None = None
) -> Upload:
    """Make room for a file; one whose `sha256` is here already is whole at once.

    Raises Invalid, Forbidden.
    """
    actor.rights.require(Act.WEIGHTS)
    now = now or db_now()
    _sizes_check(name, size_bytes)
    if sha256 and not _SHA256.fullmatch(sha256):
        raise Invalid("sha256 must be 64 hexadecimal digits")
    known = uploads_named([sha256]).get(sha256) if sha256 else None
    if known is not None and upload_path(sha256).is_file():
        Upload.objects.filter(pk=known.pk).update(used_at=now)
        return known
    if actor.user_id is not None:
        begun = Upload.objects.filter(
            sha256=None, uploaded_by_id=actor.user_id, name=name, size_bytes=size_bytes
        ).first()
        if begun is not None:
            return begun  # goes on where it stopped
    uploads_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
    return Upload.objects.create(
        name=name,
        size_bytes=size_bytes,
        uploaded_by_id=actor.user_id,
        uploaded_by_name=actor.name,
        created_at=now,
        used_at=now,
    )


def _own(upload_id: UUID, actor: Actor) -> Upload:
    actor.rights.require(Act.WEIGHTS)
    upload = upload_get(upload_id=upload_id, rights=actor.rights)
    if upload.sha256 is None and upload.uploaded_by_id != actor.user_id:
        raise NotFound(f"no upload has the id {upload_id}")
    return upload


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """The part, opened for writing; one writer at a time, over all web processes."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict("another piece of this upload is being written") from error
        yield file


def upload_append(
    *, upload_id: UUID, offset: int, body: BinaryIO, actor: Actor, now: datetime | None = None
) -> Upload:
    """Write a piece of at most settings.PIECE_BYTES; with the last one, check and keep the file.

    Raises NotFound, Invalid (too much, or no safetensors: then it is gone), Conflict (facts:
    `offset`, where to go on), Unavailable (the disk).
    """
    upload = _own(upload_id, actor)
    if upload.sha256:
        return upload
    try:
        with _locked(part_path(upload.pk)) as file:
            have = file.seek(0, os.SEEK_END)
            if offset != have:
                raise Conflict(f"{have} bytes have come; go on from there", facts={"offset": have})
            _copy(body, file, min(settings.PIECE_BYTES, upload.size_bytes - have))
            if file.tell() < upload.size_bytes:
                Upload.objects.filter(pk=upload.pk).update(used_at=now or db_now())
                return upload
            return _keep(upload, file, actor, now or db_now())
    except OSError as error:
        log.error("upload not written", upload=str(upload.pk), error=repr(error))
        raise Unavailable(
            f"the piece was not kept: {error.strerror or error}; go on from what has come",
            facts={"offset": upload_offset(upload)},
        ) from error


def _copy(body: BinaryIO, file: BinaryIO, room_bytes: int) -> None:
    """Append `body`. Raises Invalid, with the file as it was, when it is longer than allowed."""
    start, left = file.tell(), room_bytes
    while chunk := body.read(min(COPY_BYTES, left + 1)):
        if len(chunk) > left:
            file.truncate(start)
            raise Invalid(
                f"a piece may have at most {settings.PIECE_BYTES} bytes, "
                "and not pass the file's end"
            )
        file.write(chunk)
        left -= len(chunk)
    file.flush()


def _keep(upload: Upload, file: BinaryIO, actor: Actor, now: datetime) -> Upload:
    """Check a whole file and give it its name; a bad one is removed."""
    path = part_path(upload.pk)
    try:
        header = header_check(file)
    except BadSafetensors as error:
        path.unlink(missing_ok=True)
        Upload.objects.filter(pk=upload.pk).delete()
        raise Invalid(f"{upload.name} is not a whole safetensors file: {error}") from error
    file.seek(0)
    digest = hashlib.sha256()
    while chunk := file.read(COPY_BYTES):
        digest.update(chunk)
    os.fsync(file.fileno())
    sha256 = digest.hexdigest()
    path.replace(upload_path(sha256))
    try:
        with transaction.atomic():
            Upload.objects.filter(pk=upload.pk).update(
                sha256=sha256, num_tensors=header.num_tensors, used_at=now
            )
            upload.sha256, upload.num_tensors = sha256, header.num_tensors
            _note(upload, "upload.kept", actor, now)
    except IntegrityError:  # the same bytes are here under another name: that one stays
        Upload.objects.filter(pk=upload.pk).delete()
        Upload.objects.filter(sha256=sha256).update(used_at=now)
        return Upload.objects.get(sha256=sha256)
    return upload


@transaction.atomic
def upload_delete(*, upload_id: UUID, actor: Actor, now: datetime | None = None) -> None:
    """Forget a file. Raises NotFound, Conflict while an open job names it."""
    upload = _own(upload_id, actor)
    if upload.sha256 in uploads_in_use():
        raise Conflict("a job that has not ended needs this file")
    _forget(upload)
    if upload.sha256:
        _note(upload, "upload.deleted", actor, now or db_now())


def _forget(upload: Upload) -> None:
    """Row first: a file without a row is swept later, a row without a file would be promised."""
    path = upload_path(upload.sha256) if upload.sha256 else part_path(upload.pk)
    Upload.objects.filter(pk=upload.pk).delete()
    transaction.on_commit(lambda: path.unlink(missing_ok=True), robust=True)


def uploads_use(*, params: JobParams, now: datetime) -> None:
    """Hold a new job to files that are here. Raises Invalid; within the job's transaction."""
    if not isinstance(params, TensorParams):
        return
    known = uploads_named(params.uploads)
    missing = [sha for sha in params.uploads if sha not in known or not upload_path(sha).is_file()]
    if missing:
        raise Invalid(f"uploads: no file of SHA-256 {missing[0]} was uploaded, or it was cleared")
    names = [upload.name for upload in known.values()]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Invalid(f"uploads: two of the files are named {twice}")
    Upload.objects.filter(sha256__in=params.uploads).update(used_at=now)


def uploads_sweep(*, now: datetime | None = None) -> int:
    """Clear away what is old and not needed, and files without a row; returns how many."""
    now = now or db_now()
    in_use = uploads_in_use()
    old = Upload.objects.filter(
        sha256__isnull=False, used_at__lt=now - timedelta(seconds=settings.UPLOAD_KEEP_S)
    ).exclude(sha256__in=in_use)
    stale = Upload.objects.filter(sha256=None, used_at__lt=now - timedelta(seconds=PART_KEEP_S))
    count = 0
    for upload in [*old, *stale]:
        with transaction.atomic():
            _forget(upload)
            _note(upload, "upload.cleared", Actor.system("reconciler"), now)
        count += 1
    return count + _orphans_remove(now)


def _orphans_remove(now: datetime) -> int:
    if not uploads_dir().is_dir():
        return 0
    known = {str(pk) for pk in Upload.objects.values_list("pk", flat=True)} | {
        sha for sha in Upload.objects.values_list("sha256", flat=True) if sha
    }
    count = 0
    for path in uploads_dir().iterdir():
        with suppress(OSError):
            is_old = now.timestamp() - path.stat().st_mtime > PART_KEEP_S
            if path.stem not in known and is_old:
                path.unlink()
                count += 1
    return count

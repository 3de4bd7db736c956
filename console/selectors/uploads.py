"""Read uploads: rows, and where their bytes are in the state folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from django.conf import settings

from console.access import Act, Rights
from console.choices import OPEN_STATES, JobKind
from console.exceptions import NotFound
from console.models import Job, Upload

SUFFIX = ".safetensors"


def uploads_dir() -> Path:
    """Whole files, each named by its SHA-256."""
    return Path(settings.STATE_DIR) / "uploads"


def upload_path(sha256: str) -> Path:
    """Where the whole file is, if it is there."""
    return uploads_dir() / f"{sha256}{SUFFIX}"


def part_path(upload_id: UUID) -> Path:
    """Where a file on its way is kept."""
    return uploads_dir() / f"{upload_id}.part"


def upload_offset(upload: Upload) -> int:
    """How many of its bytes have come."""
    if upload.sha256:
        return upload.size_bytes
    try:
        return part_path(upload.pk).stat().st_size
    except OSError:
        return 0


def upload_get(*, upload_id: UUID, rights: Rights) -> Upload:
    """One upload. Raises NotFound, Forbidden."""
    rights.require(Act.READ)
    upload = Upload.objects.filter(pk=upload_id).first()
    if upload is None:
        raise NotFound(f"no upload has the id {upload_id}")
    return upload


def uploads_whole(*, rights: Rights) -> list[Upload]:
    """Every whole file, newest first. Raises Forbidden."""
    rights.require(Act.READ)
    return list(Upload.objects.filter(sha256__isnull=False))


def uploads_coming(*, user_id: int) -> list[Upload]:
    """What a person has begun to send."""
    return list(Upload.objects.filter(sha256=None, uploaded_by_id=user_id))


def uploads_named(sha256s: Iterable[str]) -> dict[str, Upload]:
    """The whole files of these checksums that are known."""
    return {one.sha256 or "": one for one in Upload.objects.filter(sha256__in=list(sha256s))}


def uploads_in_use() -> set[str]:
    """Checksums that a job which has not ended names."""
    rows = Job.objects.filter(
        kind=JobKind.UPDATE_WEIGHTS_FROM_TENSOR, state__in=OPEN_STATES
    ).values_list("params", flat=True)
    return {sha256 for params in rows for sha256 in params.get("uploads", [])}

"""Bring a job's files to its engine before the job itself: in pieces, from where it stopped.

The engine says how much of each file it has, so a worker that dies half-way is gone on from by the
next. Nothing is submitted here; a file that is missing or refused ends the job as failed.
"""

from __future__ import annotations

from pathlib import Path

import structlog
from django.conf import settings

from console.clock import monotonic_s
from console.gateways import Conversation, EngineSilent
from console.models import Job
from console.params import TensorParams
from console.selectors.uploads import upload_path, uploads_named
from console.services.job_claims import job_release, job_unsendable
from console.services.job_run import job_feeding
from console.tasks.lease import Lease
from console.tasks.saving import saved
from engine.protocol import MAX_UPLOAD_CHUNK_BYTES, Failure, ProtocolError, Upload, Uploaded

log = structlog.get_logger(__name__)

PIECE_S = 10.0  # the longest an engine may take to say that it has a piece
NOTE_EVERY_S = 0.5
FEED_LIMIT_S = 600.0  # then another task goes on: a task must end before its redelivery


class _Stop(Exception):
    """Nothing more is to be done by this worker."""


class _Feeder:
    """One job's files on their way."""

    def __init__(
        self, conversation: Conversation, job: Job, params: TensorParams, owner: str, lease: Lease
    ) -> None:
        self._conversation = conversation
        self._job, self._owner, self._lease = job, owner, lease
        known = uploads_named(params.uploads)
        self._files: list[tuple[str, Path]] = []
        for sha256 in params.uploads:
            path = upload_path(sha256)
            if sha256 not in known or not path.is_file():
                self._fail("upload_missing", f"the uploaded file {sha256} is not here any more")
            self._files.append((known[sha256].name, path))
        self._total_bytes = sum(path.stat().st_size for _, path in self._files)
        self._started = monotonic_s()
        self._noted_at = 0.0

    def run(self) -> None:
        """Send all of them. Raises _Stop, EngineSilent, ProtocolError, OSError."""
        before = 0
        self._note(0, is_due=True)
        for name, path in self._files:
            before += self._send(name, path, before)
        self._note(before, is_due=True)

    def _send(self, name: str, path: Path, before: int) -> int:
        size, offset, is_known = path.stat().st_size, 0, False
        with path.open("rb") as file:
            while offset < size or not is_known:
                file.seek(offset)
                data = file.read(MAX_UPLOAD_CHUNK_BYTES)
                has = self._piece(name, offset, data, size)
                # The answer to a first piece says what an earlier worker brought.
                if has <= offset and is_known:
                    raise EngineSilent(f"it has {has} bytes of {name} after it was sent more")
                offset, is_known = has, True
                self._note(before + min(offset, size))
        return size

    def _piece(self, name: str, offset: int, data: bytes, size: int) -> int:
        if self._lease.is_lost:
            raise _Stop
        if monotonic_s() - self._started > FEED_LIMIT_S:
            raise EngineSilent("its files take long; another worker goes on")
        reply = self._conversation.call(
            Upload(
                upload_id=str(self._job.pk), name=name, offset=offset, data=data, total_bytes=size
            ),
            timeout_s=PIECE_S,
        )
        if isinstance(reply, Failure):
            self._fail(str(reply.code), f"the engine refused {name}: {reply.message}")
        if not isinstance(reply, Uploaded):
            raise EngineSilent(f"it answered {type(reply).__name__}")
        return reply.received_bytes

    def _note(self, sent_bytes: int, *, is_due: bool = False) -> None:
        now = monotonic_s()
        if not is_due and now - self._noted_at < NOTE_EVERY_S:
            return
        self._noted_at = now
        kept = saved(
            lambda: job_feeding(
                job_id=self._job.pk,
                attempt=self._job.attempt,
                owner=self._owner,
                sent_bytes=sent_bytes,
                total_bytes=self._total_bytes,
                room_s=float(settings.STAGING_ALLOWANCE_S),
            )
        )
        if not kept:
            raise _Stop

    def _fail(self, code: str, message: str) -> None:
        saved(
            lambda: job_unsendable(
                job_id=self._job.pk, attempt=self._job.attempt, code=code, message=message
            )
        )
        raise _Stop


def feed(
    conversation: Conversation, job: Job, params: TensorParams, owner: str, lease: Lease
) -> bool:
    """Bring the files. False: the job is out of this worker's hands, ended or given back."""
    try:
        _Feeder(conversation, job, params, owner, lease).run()
    except _Stop:
        return False
    except OSError as error:
        log.error("upload not read", job_id=str(job.pk), error=repr(error))
        job_unsendable(
            job_id=job.pk,
            attempt=job.attempt,
            code="upload_missing",
            message=f"an uploaded file cannot be read: {error.strerror or error}",
        )
        return False
    except (EngineSilent, ProtocolError) as error:
        why = f"engine {job.engine.name} stopped taking the files: {error}"
        job_release(job_id=job.pk, attempt=job.attempt, why=why, process="worker")
        return False
    return True

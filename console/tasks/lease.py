"""A claim kept alive by a thread while its worker waits for an engine."""

from __future__ import annotations

import threading
from types import TracebackType
from uuid import UUID

import structlog
from django.db import DatabaseError, connection

from console.services.job_claims import LEASE_S, job_lease_renew

log = structlog.get_logger(__name__)

RENEW_S = LEASE_S / 4


class Lease:
    """Renews the lease of (job, attempt) until left; `is_lost` once someone else has the job."""

    def __init__(self, *, job_id: UUID, attempt: int, owner: str) -> None:
        self._job_id, self._attempt, self._owner = job_id, attempt, owner
        self._stop = threading.Event()
        self._lost = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    @property
    def is_lost(self) -> bool:
        """True when the lease could not be renewed: nothing more may be sent or written."""
        return self._lost.is_set()

    def __enter__(self) -> Lease:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=LEASE_S)

    def _run(self) -> None:
        try:
            while not self._stop.wait(RENEW_S):
                try:
                    kept = job_lease_renew(
                        job_id=self._job_id, attempt=self._attempt, owner=self._owner
                    )
                except DatabaseError as error:  # try again: three tries fit into one lease
                    log.warning("lease not renewed", job_id=str(self._job_id), error=repr(error))
                    connection.close()
                    continue
                if not kept and not self._stop.is_set():
                    self._lost.set()
                    return
                connection.close()  # back to the pool until the next renewal
        finally:
            connection.close()

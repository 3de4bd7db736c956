"""A claim kept alive beside its worker, while that waits for an engine."""

from __future__ import annotations

from types import TracebackType
from uuid import UUID

import structlog
from django.db import DatabaseError, connection

from console.clock import Ticks, every_s
from console.services.job_claims import LEASE_S, job_lease_renew

log = structlog.get_logger(__name__)

RENEW_S = LEASE_S / 4


class Lease:
    """Renews the lease of (job, attempt) until left; `is_lost` once someone else has the job."""

    def __init__(self, *, job_id: UUID, attempt: int, owner: str) -> None:
        self._job_id, self._attempt, self._owner = job_id, attempt, owner
        self._is_lost = False
        self._ticks: Ticks | None = None

    @property
    def is_lost(self) -> bool:
        """True when the lease could not be renewed: nothing more may be sent or written."""
        return self._is_lost

    def __enter__(self) -> Lease:
        self._ticks = every_s(RENEW_S, self._renew, name="lease")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._ticks is not None
        self._ticks.stop(within_s=LEASE_S)

    def _renew(self) -> bool:
        """One renewal, on a thread with a connection of its own; False when there is no other."""
        try:
            kept = job_lease_renew(job_id=self._job_id, attempt=self._attempt, owner=self._owner)
        except DatabaseError as error:  # try again: three tries fit into one lease
            log.warning("lease not renewed", job_id=str(self._job_id), error=repr(error))
            return True
        finally:
            connection.close()  # back to the pool until the next renewal
        self._is_lost = not kept
        return kept

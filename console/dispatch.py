"""Task names, and ringing for a worker after a commit. The database is the queue; this a doorbell.

A doorbell that fails costs latency, never a job: the reconciler rings again.
"""

from __future__ import annotations

from functools import cache

import structlog
from celery import current_app
from kombu.connection import Connection
from kombu.exceptions import LimitExceeded, OperationalError
from kombu.pools import producers

from console.redis_away import redis_is_away, redis_was_away

log = structlog.get_logger(__name__)

RUN_JOB = "console.tasks.jobs.run_job"
RING_S = 2.0


def job_ring(job_id: object) -> bool:
    """Ask a worker to look at the job. False when the broker could not be told."""
    if redis_is_away():
        return False
    try:
        _publish(str(job_id))
    except (OperationalError, OSError, LimitExceeded) as error:
        redis_was_away()
        log.warning("doorbell failed", job_id=str(job_id), error=repr(error))
        return False
    return True


def _publish(job_id: str) -> None:
    with producers[_connection()].acquire(block=True, timeout=RING_S) as producer:
        current_app.send_task(RUN_JOB, args=[job_id], retry=False, producer=producer)


@cache
def _connection() -> Connection:
    """The broker's, for publishing only: a worker waits in a read for long, who rings does not.
    It is what the pool of real ones is known by."""
    connection = current_app.connection_for_write()
    options = {**connection.transport_options, "socket_timeout": RING_S}
    made: Connection = connection.clone(transport_options=options)
    return made

"""Task names, and ringing for a worker after a commit. The database is the queue; this a doorbell.

A doorbell that fails costs latency, never a job: the reconciler rings again.
"""

from __future__ import annotations

import structlog
from celery import current_app
from kombu.exceptions import OperationalError

log = structlog.get_logger(__name__)

RUN_JOB = "console.tasks.jobs.run_job"


def job_ring(job_id: object) -> bool:
    """Ask a worker to look at the job. False when the broker could not be told."""
    try:
        current_app.send_task(RUN_JOB, args=[str(job_id)], retry=False)
    except (OperationalError, OSError) as error:
        log.warning("doorbell failed", job_id=str(job_id), error=repr(error))
        return False
    return True

"""The one task: look at a job. It takes an id, may be delivered twice, and holds no state."""

from __future__ import annotations

import os
import secrets
import socket
from uuid import UUID

import structlog
from celery import shared_task
from django.db import close_old_connections

from console.dispatch import RUN_JOB
from console.tasks.carry import job_carry


@shared_task(name=RUN_JOB)  # type: ignore[untyped-decorator]  # Celery has no types
def run_job(job_id: str) -> None:
    """Carry the job `job_id` if it waits for a worker."""
    owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"[:128]
    try:
        with structlog.contextvars.bound_contextvars(owner=owner):
            job_carry(job_id=UUID(job_id), owner=owner)
    finally:
        close_old_connections()

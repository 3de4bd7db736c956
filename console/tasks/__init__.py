"""Celery tasks and the reconciler: fetch, call gateway and service. Workers import this package."""

from console.tasks.jobs import run_job

__all__ = ["run_job"]

"""Settings and entry points. Naming the Celery app here makes it the current one everywhere."""

from console.project.celery import app as celery_app

__all__ = ["celery_app"]

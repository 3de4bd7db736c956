"""The Celery app. Messages carry a job id only; results live in the database."""

from __future__ import annotations

import os
from typing import Any  # Celery has no types

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.project.settings")

app = Celery("quiesce")
app.config_from_object("console.project.celery_settings:CELERY")
app.autodiscover_tasks(["console"], related_name="tasks")


@app.on_after_finalize.connect  # type: ignore[untyped-decorator]
def _steps(sender: Any, **kwargs: Any) -> None:
    """Add the worker's own steps once Django is set up: they name its settings."""
    from console.project.worker import SignOfLife, StartCheck

    sender.steps["worker"] |= {StartCheck, SignOfLife}

"""The Celery app. Messages carry a job id only; results live in the database.

At start-up a worker checks that the broker gives no message back while its task may still run.
"""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.project.settings")

app = Celery("quiesce")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["console"], related_name="tasks")

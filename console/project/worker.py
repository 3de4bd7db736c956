"""What a Celery worker does besides tasks: a check when it starts, a sign of life while it runs."""

from __future__ import annotations

from typing import Any  # Celery has no types

import redis
import structlog
from celery import bootsteps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from console.project.garbage import keep_what_is_loaded
from console.project.threads import take_turns
from console.snapshots import beat_put
from console.tasks.carry import FOLLOW_LIMIT_S, GREET_HOLD_S

log = structlog.get_logger(__name__)

BEAT_EVERY_S = 2.0
MARGIN_S = 60.0


def settings_check(*, visibility_timeout_s: float, time_limit_s: float) -> None:
    """Refuse to start when the broker would hand out a message whose task may still run."""
    longest_s = FOLLOW_LIMIT_S + GREET_HOLD_S
    if time_limit_s < longest_s + MARGIN_S:
        raise ImproperlyConfigured(
            f"CELERY_TASK_TIME_LIMIT is {time_limit_s:.0f} s; a task may follow a job for "
            f"{longest_s:.0f} s, so it must be at least {longest_s + MARGIN_S:.0f} s."
        )
    if visibility_timeout_s < time_limit_s + MARGIN_S:
        raise ImproperlyConfigured(
            f"QUIESCE_VISIBILITY_TIMEOUT_S is {visibility_timeout_s:.0f}; a task may run for "
            f"{time_limit_s:.0f} s, so it must be at least {time_limit_s + MARGIN_S:.0f}."
        )


class StartCheck(bootsteps.Step):  # type: ignore[misc]
    """Runs `settings_check` before anything else."""

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        settings_check(
            visibility_timeout_s=settings.CELERY_BROKER_TRANSPORT_OPTIONS["visibility_timeout"],
            time_limit_s=settings.CELERY_TASK_TIME_LIMIT,
        )
        if not settings.ENV.secret_key:
            raise ImproperlyConfigured(
                "There is no secret key: set QUIESCE_SECRET_KEY, or run `manage.py prepare_state`."
            )
        take_turns()  # the children, which carry jobs, inherit both
        keep_what_is_loaded()
        super().__init__(parent, **kwargs)


class SignOfLife(bootsteps.StartStopStep):  # type: ignore[misc]
    """Beats from the consumer's own loop: a worker that hangs does not beat."""

    requires = ("celery.worker.components:Timer",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._entry: Any = None

    def start(self, parent: Any) -> None:
        """Begin."""
        self._beat()
        self._entry = parent.timer.call_repeatedly(BEAT_EVERY_S, self._beat)

    def stop(self, parent: Any) -> None:
        """End."""
        if self._entry is not None:
            self._entry.cancel()
            self._entry = None

    def _beat(self) -> None:
        try:
            beat_put("worker")
        except redis.RedisError as error:
            log.debug("no sign of life", error=repr(error))

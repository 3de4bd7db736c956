"""`manage.py reconcile`: pass over all open jobs, about once a second, until told to stop."""

import redis
import structlog
from django.core.management.base import BaseCommand

from console.processes import stop_event
from console.snapshots import beat_put, nudge_wait
from console.tasks.reconcile import Reconciler

log = structlog.get_logger(__name__)

PASS_EVERY_S = 1.0
# An operation has ended, and nearly always a worker that follows it is writing that down. What it
# does not write is looked for after it, and not at the same time on the same cores.
AFTER_END_S = 0.2


class Command(BaseCommand):
    """Run the reconciler in the foreground."""

    help = "Ring again, expire, give back and ask engines about jobs that no worker follows."

    def handle(self, *args: object, **options: object) -> None:
        """Until SIGTERM or SIGINT."""
        stop = stop_event()
        reconciler = Reconciler()
        while not stop.is_set():
            reconciler.run_pass()
            try:
                beat_put("reconciler")
            except redis.RedisError as error:
                log.debug("no sign of life", error=repr(error))
            if nudge_wait(PASS_EVERY_S):
                stop.wait(AFTER_END_S)

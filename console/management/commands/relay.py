"""`manage.py relay`: follow every enabled engine until told to stop."""

from django.core.management.base import BaseCommand

from console.processes import stop_event
from console.relay import Relay


class Command(BaseCommand):
    """Run the relay in the foreground."""

    help = "Follow the events of every enabled engine: newest snapshot to Redis, hints to pages."

    def handle(self, *args: object, **options: object) -> None:
        """Until SIGTERM or SIGINT."""
        Relay().run(stop_event())

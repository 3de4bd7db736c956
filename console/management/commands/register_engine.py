"""`manage.py register_engine NAME CONTROL EVENTS`: let the console reach an engine."""

import argparse

from django.core.management.base import BaseCommand, CommandError

from console.actors import Actor
from console.exceptions import ConsoleError
from console.services.engines import engine_register


class Command(BaseCommand):
    """Register an engine, or change its addresses."""

    help = "Register an engine under NAME, or bring a registered one to these addresses."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """NAME CONTROL EVENTS [--disabled]."""
        parser.add_argument("name")
        parser.add_argument("control_address", help="such as ipc:///run/quiesce/control.sock")
        parser.add_argument("events_address", help="such as ipc:///run/quiesce/events.sock")
        parser.add_argument("--disabled", action="store_true")

    def handle(self, *args: object, **options: object) -> None:
        """Register it."""
        try:
            engine_register(
                name=str(options["name"]),
                control_address=str(options["control_address"]),
                events_address=str(options["events_address"]),
                enabled=not options["disabled"],
                actor=Actor.system("cli"),
            )
        except ConsoleError as error:
            raise CommandError(error.message) from error

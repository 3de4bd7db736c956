"""`manage.py register_engine NAME CONTROL EVENTS`: let the console reach an engine."""

import argparse
from pathlib import Path

from console.access import Act
from console.actors import Actor
from console.exceptions import Invalid
from console.labels import labels_parse
from console.management.acting import ActingCommand
from console.services.engines import engine_register


def key_read(path: Path) -> str:
    """The one line of the file. Raises Invalid."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError as error:
        raise Invalid(f"{path.name} cannot be read: {error.strerror}") from error


class Command(ActingCommand):
    """Register an engine, or change its addresses."""

    help = "Register an engine under NAME, or bring a registered one to these addresses."
    needs = Act.ENGINES

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """NAME CONTROL EVENTS [--curve-key-file FILE] [--label KEY=VALUE]... [--disabled]."""
        super().add_arguments(parser)
        parser.add_argument("name")
        parser.add_argument("control_address", help="such as ipc:///run/quiesce/control.sock")
        parser.add_argument("events_address", help="such as ipc:///run/quiesce/events.sock")
        parser.add_argument(
            "--curve-key-file", type=Path, help="the engine's public key; a tcp address needs it"
        )
        parser.add_argument("--label", action="append", metavar="KEY=VALUE")
        parser.add_argument("--disabled", action="store_true")

    def act(self, actor: Actor, options: dict[str, object]) -> None:
        """Register it."""
        labels, key_file = options["label"], options["curve_key_file"]
        engine_register(
            name=str(options["name"]),
            control_address=str(options["control_address"]),
            events_address=str(options["events_address"]),
            curve_key=key_read(key_file) if isinstance(key_file, Path) else "",
            labels=labels_parse(labels) if isinstance(labels, list) else None,
            enabled=not options["disabled"],
            actor=actor,
        )

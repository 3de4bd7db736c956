"""`manage.py replace_audit_key`: another key signs the audit log; both sign the change."""

import argparse
from pathlib import Path

from console.access import Act
from console.actors import Actor
from console.management.acting import ActingCommand
from console.services.audit_rotation import audit_key_replace


class Command(ActingCommand):
    """Replace the key."""

    help = "Replace the key that signs the audit log, on this machine."
    needs = Act.CLOSE

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """[--by FILE]."""
        super().add_arguments(parser)
        parser.add_argument(
            "--by", type=Path, metavar="FILE", help="the key that another machine has already"
        )

    def act(self, actor: Actor, options: dict[str, object]) -> None:
        """Print the new public key."""
        by = options["by"]
        assert by is None or isinstance(by, Path), by
        self.stdout.write(audit_key_replace(actor=actor, by=by))

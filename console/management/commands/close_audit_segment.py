"""`manage.py close_audit_segment --before DAY --to FOLDER`: the oldest entries leave, signed."""

import argparse
from datetime import UTC, datetime
from pathlib import Path

from django.core.management.base import CommandError

from console.access import Act
from console.actors import Actor
from console.management.acting import ActingCommand
from console.services.audit_segment import audit_segment_close


class Command(ActingCommand):
    """Close a segment."""

    help = "Export, sign, verify and then remove the audit entries that are older than a day."
    needs = Act.CLOSE

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """--before and --to."""
        super().add_arguments(parser)
        parser.add_argument("--before", required=True, help="a day such as 2026-01-31, UTC")
        parser.add_argument("--to", required=True, type=Path, help="a folder that is there")

    def act(self, actor: Actor, options: dict[str, object]) -> None:
        """Print what was closed, and its file's SHA-256."""
        try:
            before = datetime.fromisoformat(str(options["before"])).replace(tzinfo=UTC)
        except ValueError as error:
            raise CommandError("--before must be a day such as 2026-01-31") from error
        folder = Path(str(options["to"]))
        if not folder.is_dir():
            raise CommandError(f"{folder} is no folder")
        made = audit_segment_close(before=before, folder=folder, actor=actor)
        self.stdout.write(f"closed {made.first} to {made.last}: {folder / made.file_name}")
        self.stdout.write(f"sha256 {made.file_digest}")

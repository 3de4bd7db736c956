"""`manage.py set_user NAME --disable`: end a person's sessions and tokens; `--enable` undoes it."""

import argparse

from console.access import Act
from console.actors import Actor
from console.management.acting import ActingCommand
from console.services.users import user_set_active


class Command(ActingCommand):
    """Disable or enable a user."""

    help = "Disable a user at once, or enable one again. Users are not deleted: the record stays."
    needs = Act.USERS

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """NAME (--disable | --enable)."""
        super().add_arguments(parser)
        parser.add_argument("username")
        wanted = parser.add_mutually_exclusive_group(required=True)
        wanted.add_argument("--disable", action="store_true")
        wanted.add_argument("--enable", action="store_true")

    def act(self, actor: Actor, options: dict[str, object]) -> None:
        """Set it."""
        user = user_set_active(
            username=str(options["username"]), is_active=bool(options["enable"]), actor=actor
        )
        self.stderr.write(f"user {user.username} {'enabled' if user.is_active else 'disabled'}")

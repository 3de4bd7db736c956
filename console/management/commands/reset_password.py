"""`manage.py reset_password NAME`: a new password, which ends every session of that person."""

import argparse

from console.access import Act
from console.actors import Actor
from console.management.acting import ActingCommand
from console.management.passwords import password_option, password_read
from console.services.users import user_reset_password


class Command(ActingCommand):
    """Reset a password."""

    help = "Set a new password; without --password-stdin one is made and printed once."
    needs = Act.USERS

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """NAME [--password-stdin]."""
        super().add_arguments(parser)
        parser.add_argument("username")
        password_option(parser)

    def act(self, actor: Actor, options: dict[str, object]) -> None:
        """Set it, print a made one."""
        password, is_made = password_read(bool(options["password_stdin"]))
        user_reset_password(username=str(options["username"]), password=password, actor=actor)
        if is_made:
            self.stdout.write(password)

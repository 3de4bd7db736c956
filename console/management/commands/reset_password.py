"""`manage.py reset_password NAME`: a new password; the person's sessions end."""

import argparse

from django.core.management.base import BaseCommand, CommandError

from console.actors import Actor
from console.exceptions import ConsoleError
from console.management.passwords import password_option, password_read
from console.services.users import user_reset_password


class Command(BaseCommand):
    """Reset a password."""

    help = "Set a new password; without --password-stdin one is made and printed once."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """NAME [--password-stdin]."""
        parser.add_argument("username")
        password_option(parser)

    def handle(self, *args: object, **options: object) -> None:
        """Set it, print a made one."""
        password, is_made = password_read(bool(options["password_stdin"]))
        try:
            user_reset_password(
                username=str(options["username"]), password=password, actor=Actor.system("cli")
            )
        except ConsoleError as error:
            raise CommandError(error.message) from error
        if is_made:
            self.stdout.write(password)

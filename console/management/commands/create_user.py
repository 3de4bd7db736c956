"""`manage.py create_user NAME`: someone who can log in."""

import argparse

from django.core.management.base import BaseCommand, CommandError

from console.actors import Actor
from console.exceptions import ConsoleError
from console.management.passwords import password_option, password_read
from console.services.users import user_create


class Command(BaseCommand):
    """Make a user."""

    help = "Make a user; without --password-stdin a password is made and printed once."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """NAME [--admin] [--password-stdin]."""
        parser.add_argument("username")
        parser.add_argument("--admin", action="store_true")
        password_option(parser)

    def handle(self, *args: object, **options: object) -> None:
        """Make the user, print a made password."""
        password, is_made = password_read(bool(options["password_stdin"]))
        try:
            user = user_create(
                username=str(options["username"]),
                password=password,
                is_admin=bool(options["admin"]),
                actor=Actor.system("cli"),
            )
        except ConsoleError as error:
            raise CommandError(error.message) from error
        self.stderr.write(f"user {user.username} made")
        if is_made:
            self.stdout.write(password)

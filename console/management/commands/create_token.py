"""`manage.py create_token USER NAME`: a bearer token, printed once."""

import argparse
from datetime import timedelta

from django.core.management.base import BaseCommand, CommandError

from console.actors import Actor
from console.clock import db_now
from console.exceptions import ConsoleError
from console.models import User
from console.services.tokens import token_create


class Command(BaseCommand):
    """Make a token."""

    help = "Make a bearer token for the REST API; it is printed once and stored as a hash only."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """USER NAME [--days N]."""
        parser.add_argument("username")
        parser.add_argument("name")
        parser.add_argument("--days", type=int, default=90, help="life in days; 0: no end")

    def handle(self, *args: object, **options: object) -> None:
        """Make and print it."""
        user = User.objects.filter(username=str(options["username"])).first()
        if user is None:
            raise CommandError(f"no user is named {options['username']!r}")
        days = int(str(options["days"]))
        if not 0 <= days <= 3650:
            raise CommandError("--days must be from 0 to 3650")
        try:
            made = token_create(
                user=user,
                name=str(options["name"]),
                actor=Actor.system("cli"),
                expires_at=db_now() + timedelta(days=days) if days else None,
            )
        except ConsoleError as error:
            raise CommandError(error.message) from error
        self.stdout.write(made.text)

"""`manage.py create_token USER NAME`: a bearer token, printed once."""

import argparse
from datetime import timedelta

from django.core.management.base import CommandError

from console.access import Act
from console.actors import Actor
from console.clock import db_now
from console.management.acting import ActingCommand
from console.services.tokens import token_create


class Command(ActingCommand):
    """Make a token."""

    help = "Make a bearer token for the REST API; it is printed once and stored as a hash only."
    needs = Act.TOKENS

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """USER NAME [--days N] [--scope SCOPE]... [--on SELECTOR]."""
        super().add_arguments(parser)
        parser.add_argument("username")
        parser.add_argument("name")
        parser.add_argument("--days", type=int, default=90, help="life in days; 0: no end")
        parser.add_argument(
            "--scope",
            action="append",
            choices=Act.values,
            help="may be repeated; without any, all that its owner may",
        )
        parser.add_argument("--on", default="", help="the engines that it reaches; all if not")

    def act(self, actor: Actor, options: dict[str, object]) -> None:
        """Make and print it."""
        days = int(str(options["days"]))
        if not 0 <= days <= 3650:
            raise CommandError("--days must be from 0 to 3650")
        scopes = options["scope"]
        made = token_create(
            username=str(options["username"]),
            name=str(options["name"]),
            scopes=[str(one) for one in scopes] if isinstance(scopes, list) else None,
            reach=str(options["on"]),
            actor=actor,
            expires_at=db_now() + timedelta(days=days) if days else None,
        )
        self.stdout.write(made.text)

"""`manage.py revoke_token TOKEN`: a bearer token ends at once."""

import argparse

from django.core.management.base import BaseCommand, CommandError

from console.actors import Actor
from console.exceptions import ConsoleError
from console.services.tokens import token_revoke


class Command(BaseCommand):
    """Revoke a token."""

    help = "End a bearer token at once. Its first 12 characters, as the audit log shows, will do."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """TOKEN."""
        parser.add_argument("token", help="the token, or its beginning such as qsc_1a2B3c4D")

    def handle(self, *args: object, **options: object) -> None:
        """Revoke it."""
        prefix = str(options["token"]).removeprefix("qsc_").split("_")[0]
        try:
            token = token_revoke(prefix=prefix, actor=Actor.system("cli"))
        except ConsoleError as error:
            raise CommandError(error.message) from error
        self.stderr.write(f"token {token.name} of {token.user.username} revoked")

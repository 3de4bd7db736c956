"""`manage.py revoke_token TOKEN`: end a token at once."""

import argparse

from console.access import Act
from console.actors import Actor
from console.management.acting import ActingCommand
from console.services.tokens import token_revoke


class Command(ActingCommand):
    """Revoke a token."""

    help = "End a bearer token at once. Its first 12 characters, as the audit log shows, will do."
    needs = Act.TOKENS

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """TOKEN [--reason TEXT]."""
        super().add_arguments(parser)
        parser.add_argument("token", help="the token, or its beginning such as qsc_1a2B3c4D")
        parser.add_argument("--reason", default="")

    def act(self, actor: Actor, options: dict[str, object]) -> None:
        """Revoke it."""
        prefix = str(options["token"]).removeprefix("qsc_").split("_")[0]
        token = token_revoke(prefix=prefix, reason=str(options["reason"]), actor=actor)
        self.stderr.write(f"token {token.name} of {token.user.username} revoked")

"""What every command that changes something shares: who acts, what they may, how it fails."""

from __future__ import annotations

import argparse
import getpass
from typing import ClassVar
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from console import notify
from console.access import EVERYTHING, Act
from console.actors import Actor
from console.choices import Via
from console.exceptions import ConsoleError
from console.models import User
from console.selectors.access import rights_of


class ActingCommand(BaseCommand):
    """Whoever can run it on this machine may do all; with `--as` they act as a person, by their
    roles. Subclasses say which act it is and define `act`."""

    needs: ClassVar[Act]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """[--as NAME]."""
        parser.add_argument(
            "--as", dest="acting", metavar="USER", help="act as this person, with their roles only"
        )

    def handle(self, *args: object, **options: object) -> None:
        """Check, act; a refusal is the command's failure, in one sentence."""
        with notify.held_back() as hints:
            refused = self._refused(options)
        if not notify.sent_now(hints):
            self.stderr.write(
                f"Done, but no Redis answers at {_redis_address()}, so open pages were not told: "
                "they notice at their next reading. REDIS_URL must name the console's."
            )
        if refused is not None:
            raise CommandError(refused.message) from refused

    def _refused(self, options: dict[str, object]) -> ConsoleError | None:
        try:
            actor = self.actor(str(options["acting"] or ""))
            actor.rights.require(self.needs)
            self.act(actor, options)
        except ConsoleError as error:
            return error
        return None

    def act(self, actor: Actor, options: dict[str, object]) -> None:
        """Do it. May raise ConsoleError."""
        raise NotImplementedError

    def actor(self, name: str) -> Actor:
        """The person named, or whoever runs this on the machine."""
        if not name:
            return Actor(None, f"system:cli:{_login()}"[:150], Via.CLI, rights=EVERYTHING)
        user = User.objects.filter(username=name).first()
        if user is None:
            raise CommandError(f"no user is named {name!r}")
        return Actor(user.pk, user.username, Via.CLI, rights=rights_of(user))


def _redis_address() -> str:
    """Where Redis was looked for, without its password."""
    parts = urlsplit(settings.REDIS_URL)
    return parts.netloc.rpartition("@")[2] or parts.path


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "nobody known"

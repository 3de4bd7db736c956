"""`manage.py prepare_state`: what a first start needs, made once, private to its owner.

Run it once with --secret-only (the key must be there for every later process), and once after
`migrate`, or with --migrate; each run changes only what is missing.
"""

import argparse
import os
import secrets
import stat
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from console.access import Role
from console.actors import Actor
from console.exceptions import ConsoleError
from console.gateways.keys import console_key_make
from console.models import ApiToken, User
from console.services.audit_key import key_make
from console.services.engines import engine_register
from console.services.tokens import token_create, token_verify
from console.services.users import password_make, user_create, user_reset_password

ADMIN = "admin"


def private_write(path: Path, text: str) -> None:
    """Write `text` so that nobody else can read it at any moment, whole or not at all."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def private_read(path: Path) -> str | None:
    """The file's text; None when it is not there. Tightens the mode of one that others can read."""
    if not path.is_file():
        return None
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        path.chmod(0o600)
    return path.read_text().strip() or None


class Command(BaseCommand):
    """Prepare the state folder."""

    help = "Make the keys (secret-key, audit-key.pem, console-curve) and the first admin."
    requires_system_checks = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """[--secret-only | --migrate] [--no-engine | --engine-control A --engine-events A]."""
        parser.add_argument("--secret-only", action="store_true")
        parser.add_argument("--migrate", action="store_true", help="bring the tables up to date")
        parser.add_argument("--no-engine", action="store_true", help="register none")
        parser.add_argument("--engine-name", default="local")
        parser.add_argument("--engine-control", default="")
        parser.add_argument("--engine-events", default="")

    def handle(self, *args: object, **options: object) -> None:
        """Make what is missing."""
        folder = Path(settings.STATE_DIR)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if private_read(folder / "secret-key") is None:
            private_write(folder / "secret-key", secrets.token_urlsafe(64))
        key_make()
        try:
            console_key_make()
        except ConsoleError as error:
            raise CommandError(error.message) from error
        if options["secret_only"]:
            return
        if options["migrate"]:  # in this process: each one takes a second to start
            call_command("migrate", verbosity=0)
        try:
            user = self._admin(folder)
            self._token(folder, user)
            if options["no_engine"]:
                return
            run = folder / "run"
            engine_register(
                name=str(options["engine_name"]),
                control_address=str(options["engine_control"]) or f"ipc://{run}/control.sock",
                events_address=str(options["engine_events"]) or f"ipc://{run}/events.sock",
                actor=Actor.system("prepare_state"),
            )
        except ConsoleError as error:
            raise CommandError(error.message) from error

    def _admin(self, folder: Path) -> User:
        """The admin; a lost password file means a new password, a changed one is left alone."""
        actor = Actor.system("prepare_state")
        path = folder / "admin-password"
        user = User.objects.filter(username=ADMIN).first()
        if user is not None and private_read(path) is not None:
            return user
        password = private_read(path) or password_make()
        # The file first: a crash in between leaves a password that the next run takes up.
        private_write(path, password)
        if user is None:
            return user_create(username=ADMIN, password=password, roles=[Role.ADMIN], actor=actor)
        return user_reset_password(username=ADMIN, password=password, actor=actor)

    def _token(self, folder: Path, user: User) -> ApiToken:
        path = folder / "admin-token"
        text = private_read(path)
        token = token_verify(text=text) if text else None
        if token is not None:
            return token
        made = token_create(
            username=user.username, name="admin-token", actor=Actor.system("prepare_state")
        )
        private_write(path, made.text)
        return made.token

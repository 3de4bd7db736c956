"""`manage.py create_user NAME --role ROLE`: someone who can log in, or a service account."""

import argparse

from console.access import Act, Role
from console.actors import Actor
from console.management.acting import ActingCommand
from console.management.passwords import password_option, password_read
from console.services.users import user_create


class Command(ActingCommand):
    """Make a user."""

    help = "Make a user; without --password-stdin a password is made and printed once."
    needs = Act.USERS

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """NAME [--role ROLE]... [--service] [--full-name TEXT] [--password-stdin]."""
        super().add_arguments(parser)
        parser.add_argument("username")
        parser.add_argument(
            "--role",
            action="append",
            choices=Role.values,
            help="on every engine; may be repeated; viewer if none is given (give_role has limits)",
        )
        parser.add_argument("--admin", action="store_true", help="the same as --role admin")
        parser.add_argument(
            "--service", action="store_true", help="a service account: tokens only, no log-in"
        )
        parser.add_argument("--full-name", default="")
        password_option(parser)

    def act(self, actor: Actor, options: dict[str, object]) -> None:
        """Make the user, print a made password."""
        is_service = bool(options["service"])
        password, is_made = ("", False)
        if not is_service:
            password, is_made = password_read(bool(options["password_stdin"]))
        asked = options["role"] if isinstance(options["role"], list) else []
        roles = [*asked, *([Role.ADMIN] if options["admin"] else [])] or [Role.VIEWER]
        user = user_create(
            username=str(options["username"]),
            password=password,
            roles=roles,
            is_service=is_service,
            full_name=str(options["full_name"]),
            actor=actor,
        )
        self.stderr.write(f"user {user.username} made: {', '.join(map(str, roles))}")
        if is_made:
            self.stdout.write(password)

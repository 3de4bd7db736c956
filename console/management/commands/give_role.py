"""`manage.py give_role USER ROLE`: on every engine or a group, within limits."""

import argparse

from console.access import Act, Role
from console.actors import Actor
from console.choices import Mode
from console.management.acting import ActingCommand
from console.services.grants import grant_give


class Command(ActingCommand):
    """Give a role, or change its limits."""

    help = "Give a role on the engines that a label selector selects; again, to change its limits."
    needs = Act.USERS

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """USER ROLE [--on SELECTOR] [--max-timeout-s S] [--mode MODE]... [--no-force]."""
        super().add_arguments(parser)
        parser.add_argument("username")
        parser.add_argument("role", choices=Role.values)
        parser.add_argument("--on", default="", help="such as env=prod,team!=b; else all")
        parser.add_argument("--max-timeout-s", type=float, help="the longest deadline")
        parser.add_argument("--mode", action="append", choices=Mode.values, help="allowed modes")
        parser.add_argument("--no-force", action="store_true", help="may not force")

    def act(self, actor: Actor, options: dict[str, object]) -> None:
        """Give it."""
        seconds, modes = options["max_timeout_s"], options["mode"]
        row = grant_give(
            username=str(options["username"]),
            role=str(options["role"]),
            selector=str(options["on"]),
            max_timeout_s=seconds if isinstance(seconds, float) else None,
            modes=[str(mode) for mode in modes] if isinstance(modes, list) else None,
            may_force=not options["no_force"],
            actor=actor,
        )
        self.stderr.write(f"{row.user.username} has the {row}")

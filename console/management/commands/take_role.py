"""`manage.py take_role USER ROLE`: take a role away; open pages of the person close within 1 s."""

import argparse

from console.access import Act, Role
from console.actors import Actor
from console.exceptions import NotFound
from console.labels import selector_read
from console.management.acting import ActingCommand
from console.models import RoleGrant
from console.services.grants import grant_take


class Command(ActingCommand):
    """Take a role away."""

    help = "Take a role away that was given on these engines."
    needs = Act.USERS

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """USER ROLE [--on SELECTOR]."""
        super().add_arguments(parser)
        parser.add_argument("username")
        parser.add_argument("role", choices=Role.values)
        parser.add_argument("--on", default="", help="the selector that it was given with")

    def act(self, actor: Actor, options: dict[str, object]) -> None:
        """Take it."""
        username, role = str(options["username"]), str(options["role"])
        selector = selector_read(str(options["on"])).text
        row = RoleGrant.objects.filter(
            user__username=username, role=role, selector=selector
        ).first()
        if row is None:
            raise NotFound(f"{username} has no role {role} on {selector or 'every engine'}")
        grant_take(grant_id=row.pk, actor=actor)

"""`manage.py restrict_role ROLE`: what the console's own role may do in PostgreSQL, and no more."""

import argparse

from django.core.management.base import CommandError
from django.db import connection, transaction

from console.access import Act
from console.actors import Actor
from console.management.acting import ActingCommand


class Command(ActingCommand):
    """Grant a role what the serving processes need."""

    help = "Grant a PostgreSQL role the console's tables; of the audit log only INSERT and SELECT."

    needs = Act.USERS

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The role."""
        super().add_arguments(parser)
        parser.add_argument("role", help="it must exist; run this as the owner, after migrate")

    def act(self, actor: Actor, options: dict[str, object]) -> None:
        """Grant, in one transaction."""
        if connection.vendor != "postgresql":
            raise CommandError("only PostgreSQL has roles; SQLite's triggers are there already")
        name = str(options["role"])
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT rolsuper FROM pg_roles WHERE rolname = %s", [name])
            found = cursor.fetchone()
            if found is None:
                raise CommandError(f"there is no role {name!r}")
            if found[0]:
                raise CommandError(f"{name!r} is a superuser, whom nothing restricts")
            cursor.execute("SELECT current_schema()")
            schema = connection.ops.quote_name(cursor.fetchone()[0])
            role = connection.ops.quote_name(name)
            audit = f"{schema}.console_auditentry"
            for statement in (
                f"GRANT USAGE ON SCHEMA {schema} TO {role}",
                f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}",
                f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {schema} TO {role}",
                f"REVOKE ALL ON {audit} FROM {role}",
                f"GRANT SELECT, INSERT ON {audit} TO {role}",
                f"REVOKE ALL ON {schema}.console_auditsegment FROM {role}",
                f"GRANT SELECT ON {schema}.console_auditsegment TO {role}",
            ):
                cursor.execute(statement)
        self.stdout.write(f"{name} may append to the audit log and read it, and change the rest")

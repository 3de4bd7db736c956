"""The database's clock: the only one that job deadlines and leases are compared on.

Services take `now` as an argument, so that a simulation can bring its own time.
"""

from __future__ import annotations

from datetime import UTC, datetime

from django.db import connection


def db_now() -> datetime:
    """Now, on the clock of the database server. SQLite has no server: its clock is this host's."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT clock_timestamp()")
            (now,) = cursor.fetchone()
            assert isinstance(now, datetime), now
            return now
    return datetime.now(UTC)

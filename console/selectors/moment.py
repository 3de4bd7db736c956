"""Reading several rows as of one moment: a job with its ranks, never one of them newer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

# `atomic()` would take SQLite's write lock, and on PostgreSQL each statement sees its own moment.
_BEGIN = {
    "sqlite": "BEGIN DEFERRED",
    "postgresql": "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
}


@contextmanager
def one_moment() -> Iterator[None]:
    """All that is read inside is as of one moment. Nobody waits for it; nothing may be written."""
    if connection.in_atomic_block:  # whoever opened that one decides
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute(_BEGIN[connection.vendor])
    try:
        yield
    except BaseException:
        connection.close()  # ends it, also when the database does not answer any more
        raise
    with connection.cursor() as cursor:
        cursor.execute("COMMIT")

"""Reading several rows as of one moment: a job with its ranks, never one of them newer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from django.db import connection

# `atomic()` would take SQLite's write lock, and on PostgreSQL each statement sees its own moment.
_BEGIN = {
    "sqlite": "BEGIN DEFERRED",
    "postgresql": "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
}
_is_inside: ContextVar[bool] = ContextVar("one_moment", default=False)


@contextmanager
def one_moment() -> Iterator[None]:
    """All that is read inside is as of one moment. Nobody waits for it; nothing may be written.

    Inside another one, or a transaction, it is as of that one's.
    """
    if _is_inside.get() or connection.in_atomic_block:
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute(_BEGIN[connection.vendor])
    token = _is_inside.set(True)
    try:
        yield
    except BaseException:
        connection.close()  # ends it, also when the database does not answer any more
        raise
    finally:
        _is_inside.reset(token)
    with connection.cursor() as cursor:
        cursor.execute("COMMIT")

"""The real database engine, in memory: Django's SQLite, with seams before each statement.

A transaction is not interrupted, as under BEGIN IMMEDIATE nobody else could write meanwhile; a kill
inside one equals a kill before it. It may fail at its BEGIN and at its COMMIT, and a COMMIT that
succeeded may be told as failed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any  # what Django hands to a wrapper of statements
from uuid import UUID

from django.core.management import call_command
from django.db import OperationalError, connections
from django.db.backends.sqlite3.base import DatabaseWrapper

from console.choices import HOLDING_STATES, SHARED_KINDS
from tests.console.simulation.hub import START, check

_HOLDING = ",".join(f"'{state}'" for state in sorted(HOLDING_STATES))
_SHARED = ",".join(f"'{kind}'" for kind in sorted(SHARED_KINDS))
_TWO_HOLDERS = (
    f"SELECT engine_id FROM console_job WHERE state IN ({_HOLDING}) AND kind NOT IN ({_SHARED})"
    " GROUP BY engine_id HAVING COUNT(*) > 1"
)


def _seconds(moment: datetime | str | None) -> float | None:
    """On the simulated clock."""
    if moment is None:
        return None
    known = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return (known.replace(tzinfo=UTC) - START).total_seconds()


class Injected(OperationalError):
    """A fault of the database that the simulation made."""


class SimDatabase(DatabaseWrapper):
    """One connection, shared by all actors: they give the baton away outside transactions only."""

    on_statement: Callable[[str], None] = staticmethod(lambda sql: None)
    on_commit_fault: Callable[[], str] = staticmethod(lambda: "")
    on_committed: Callable[[], None] = staticmethod(lambda: None)

    def _commit(self) -> None:
        fault = self.on_commit_fault()
        if fault == "refused":
            raise Injected("disk I/O error")
        super()._commit()
        self.on_committed()
        if fault == "unheard":
            raise Injected("the connection was lost while committing")

    def raw(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Read beside the product: no seam, no ORM."""
        assert isinstance(self.connection, sqlite3.Connection)
        cursor = sqlite3.Connection.execute(self.connection, sql, values)
        return cursor.fetchall()

    def check_holders(self) -> None:
        """One exclusive job an engine, whatever the index says."""
        check(self.raw(_TWO_HOLDERS) == [], "two exclusive jobs hold one engine")

    def job(self, op_id: str) -> dict[str, Any] | None:
        """What matters of a job's row; None for what is no job of ours."""
        try:
            key = UUID(op_id).hex
        except ValueError:
            return None
        rows = self.raw(
            "SELECT state, kind, dispatch_by, requested_by_id FROM console_job WHERE id = ?", key
        )
        if not rows:
            return None
        state, kind, until, asker = rows[0]
        (claimed,) = self.raw(
            "SELECT max(created_at) FROM console_auditentry"
            " WHERE job_id = ? AND action = 'job.claimed'",
            key,
        )
        return {
            "state": state,
            "kind": kind,
            "dispatch_by_s": _seconds(until),
            "asker": asker,
            "claimed_at_s": _seconds(claimed[0]),
        }

    def has_entry(self, op_id: str, action: str) -> bool:
        """Whether the audit log holds this of a job."""
        sql = "SELECT 1 FROM console_auditentry WHERE job_id = ? AND action = ?"
        return bool(self.raw(sql, UUID(op_id).hex, action))


class Store:
    """The database of a whole test run: `reset` brings back how it began, in a millisecond."""

    def __init__(self, db: SimDatabase) -> None:
        self.db = db
        self._first = sqlite3.connect(":memory:")
        db.connection.backup(self._first)

    def keep(self) -> None:
        """What is there now is what `reset` brings back."""
        self.db.connection.backup(self._first)

    def reset(self) -> None:
        """As it was kept."""
        self._first.backup(self.db.connection)

    def close(self) -> None:
        self._first.close()


@contextmanager
def in_memory() -> Iterator[Store]:
    """Inside, Django's default database is a new one in memory, with every migration."""
    usual = connections["default"]
    db = SimDatabase({**usual.settings_dict, "NAME": ":memory:"}, alias="default")
    connections["default"] = db
    call_command("migrate", verbosity=0)

    def each(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        # All share one connection: what is read as of one moment is read without another's turn.
        if not (db.in_atomic_block or db.connection.in_transaction):
            db.on_statement(sql)
        return execute(sql, params, many, context)

    store = Store(db)
    try:
        with db.execute_wrapper(each):
            yield store
    finally:
        connections["default"] = usual
        store.close()
        db.connection.close()

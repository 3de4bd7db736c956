"""SQLite with kept connections, as the pool of PostgreSQL has them.

Each request and each job has a thread of its own, and Django opens a connection for each thread.
Opening one costs as much as several queries: the file, its settings, its schema read anew, and
every statement prepared again. docs/decisions/0026-kept-sqlite-connections.md
"""

from __future__ import annotations

import atexit
import os
import sqlite3
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # Django's backends have no types of their own

from django.db.backends.sqlite3 import base

MAX_KEPT = 16  # a process; more at once are opened, and closed again


@dataclass(frozen=True)
class _File:
    """Which file a connection has open: the path alone may name another one meanwhile."""

    path: str
    device: int
    inode: int


def _file_at(path: str) -> _File | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return _File(path, found.st_dev, found.st_ino)


# Of this process, the last used last, with the file of each.
_kept: list[tuple[_File, sqlite3.Connection]] = []
_parents: list[sqlite3.Connection] = []  # SQLite forbids a child to touch them, also to close them
_lock = threading.Lock()


def _after_fork() -> None:
    """The lock may have been held by a thread that the child does not have."""
    global _lock
    _lock = threading.Lock()
    _parents.extend(connection for _, connection in _kept)
    _kept.clear()


def _close_kept() -> None:
    """At the end of the process: the last one to close a file also brings its log into it."""
    with _lock:
        free = [connection for _, connection in _kept]
        _kept.clear()
    for connection in free:
        connection.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_close_kept)


def _take(file: _File) -> sqlite3.Connection | None:
    """A free connection to this very file; those to what was at its path before are closed."""
    with _lock:
        stale = [one for one in _kept if one[0].path == file.path and one[0] != file]
        for one in stale:
            _kept.remove(one)
        mine = [one for one in _kept if one[0] == file]
        if mine:
            _kept.remove(mine[-1])
    for _, connection in stale:
        connection.close()
    return mine[-1][1] if mine else None


def _keep(file: _File, connection: sqlite3.Connection) -> bool:
    """False when there are enough."""
    with _lock:
        if len(_kept) >= MAX_KEPT:
            return False
        _kept.append((file, connection))
        return True


class Cursor(base.SQLiteCursorWrapper):  # type: ignore[misc]  # it has no types
    """Django's, but closed at once when a statement fails.

    One that is left to the garbage collector resets its statement while it holds Python's own lock,
    and for that waits for its connection. Where that one waits for the file's lock, and the
    collector runs in the thread that has it, the whole process stood still until a wait of 20 s was
    over. Django's errors are such garbage: each leads back to itself.
    """

    def execute(self, query: str, params: Any = None) -> Any:
        """One statement."""
        try:
            return super().execute(query, params)
        except BaseException:
            self.close()
            raise

    def executemany(self, query: str, param_list: Any) -> Any:
        """A statement for each of these."""
        try:
            return super().executemany(query, param_list)
        except BaseException:
            self.close()
            raise


class DatabaseWrapper(base.DatabaseWrapper):  # type: ignore[misc]  # it has no types
    """Django's, but for where connections come from and go to."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._file: _File | None = None
        self._cursors: weakref.WeakSet[sqlite3.Cursor] = weakref.WeakSet()

    def get_new_connection(self, conn_params: dict[str, Any]) -> sqlite3.Connection:
        """A kept one, else a new one."""
        path = str(conn_params["database"])
        self._file = _file_at(path)
        if self._file is not None and (kept := _take(self._file)):
            return kept
        made: sqlite3.Connection = super().get_new_connection(conn_params)
        if self._file is None:
            self._file = _file_at(path)  # it was made with it
        return made

    def create_cursor(self, name: str | None = None) -> sqlite3.Cursor:
        """A cursor; one that is still read from would hold the connection to its old moment."""
        cursor: sqlite3.Cursor = self.connection.cursor(factory=Cursor)
        self._cursors.add(cursor)
        return cursor

    def _close(self) -> None:
        """Keep it for the next thread, unless something went wrong with it."""
        connection: sqlite3.Connection = self.connection
        cursors, self._cursors = list(self._cursors), weakref.WeakSet()
        with self.wrap_database_errors:
            try:
                for cursor in cursors:
                    cursor.close()
                connection.rollback()
                is_fit = not self.errors_occurred
            except sqlite3.Error:
                is_fit = False
            if not (is_fit and self._file and _keep(self._file, connection)):
                connection.close()

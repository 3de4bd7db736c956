"""Kept SQLite connections: one thread's is the next one's, and nothing else of the first is."""

from __future__ import annotations

import contextlib
import gc
import os
import sqlite3
import threading
import time

import pytest
from django.db import DatabaseError, OperationalError

from console.project.databases import sqlite_database
from console.project.sqlite import base
from console.project.sqlite.base import DatabaseWrapper

pytestmark = pytest.mark.django_db  # not ours, but Django may be used at all


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "_kept", [])  # what other tests kept counts, too
    made = tmp_path / "x.sqlite3"
    with one(made) as database:
        run(database, "CREATE TABLE t (n INTEGER)")
    return made


class one:  # noqa: N801  # reads as what it is: `with one(path) as database`
    """A wrapper as a thread of its own has it, closed after it."""

    def __init__(self, path):
        settings = sqlite_database(path) | {
            "AUTOCOMMIT": True,
            "CONN_HEALTH_CHECKS": False,
            "TIME_ZONE": None,
        }
        self.wrapper = DatabaseWrapper(settings, "kept")

    def __enter__(self):
        return self.wrapper

    def __exit__(self, *_):
        self.wrapper.close()


def run(database, sql):
    with database.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


@contextlib.contextmanager
def transaction_on(database):
    """As `atomic()` does, which finds connections by alias."""
    database.ensure_connection()
    database._start_transaction_under_autocommit()
    yield
    run(database, "COMMIT")


def raw(path):
    """Which connection whoever comes next is given."""
    with one(path) as database:
        database.ensure_connection()
        return database.connection


def test_the_next_one_is_given_the_connection_of_the_last(path):
    first = raw(path)
    found = []
    thread = threading.Thread(target=lambda: found.append(raw(path)))
    thread.start()
    thread.join()
    assert found == [first]


def test_two_at_once_have_two(path):
    with one(path) as here, one(path) as there:
        here.ensure_connection()
        there.ensure_connection()
        assert here.connection is not there.connection


def test_an_unfinished_transaction_ends_with_its_owner(path):
    with one(path) as database:
        run(database, "BEGIN IMMEDIATE")
        run(database, "INSERT INTO t VALUES (1)")
    with one(path) as database:
        assert run(database, "SELECT n FROM t") == []
    other = sqlite3.connect(path, timeout=0)
    try:
        other.execute("INSERT INTO t VALUES (2)")  # nobody holds the lock
    finally:
        other.close()


def test_what_is_read_half_holds_nobody_to_its_moment(path):
    with one(path) as database:
        run(database, "INSERT INTO t VALUES (1), (2), (3)")
        half = database.create_cursor()
        assert half.execute("SELECT n FROM t").fetchone() == (1,)
        kept = database.connection
    other = sqlite3.connect(path)
    with other:
        other.execute("INSERT INTO t VALUES (4)")
    other.close()
    with one(path) as database:
        assert run(database, "SELECT COUNT(*) FROM t") == [(4,)]
        assert database.connection is kept
    with pytest.raises(sqlite3.ProgrammingError):
        half.fetchone()


def test_one_with_which_something_went_wrong_is_not_kept(path):
    with one(path) as database:
        with pytest.raises(DatabaseError):
            run(database, "SELECT n FROM nothing")
        broken = database.connection
    assert raw(path) is not broken


def test_a_file_that_was_put_in_its_place_is_opened(path, tmp_path):
    old = raw(path)
    restored = sqlite3.connect(tmp_path / "restored")
    with restored:
        restored.execute("CREATE TABLE t AS SELECT 7 AS n")
    restored.close()
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink()
    (tmp_path / "restored").replace(path)
    with one(path) as database:
        assert run(database, "SELECT n FROM t") == [(7,)]
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        old.execute("SELECT 1")


def test_a_child_does_not_touch_what_its_parent_kept(path):
    with one(path) as database:
        run(database, "INSERT INTO t VALUES (1)")
        parents = database.connection
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        with one(path) as database:
            count = run(database, "SELECT COUNT(*) FROM t")
            os.write(writes, f"{database.connection is parents} {count}".encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as said:
        assert said.read() == "False [(1,)]"
    assert os.waitpid(child, 0)[1] == 0
    assert raw(path) is parents


def test_no_more_are_kept_than_may_be(path, monkeypatch):
    monkeypatch.setattr(base, "MAX_KEPT", 1)
    with one(path) as here, one(path) as there:
        here.ensure_connection()
        there.ensure_connection()
        first, second = here.connection, there.connection
    assert len(base._kept) == 1
    (left,) = {first, second} - {raw(path)}
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        left.execute("SELECT 1")


def test_the_settings_are_those_of_every_connection(path):
    raw(path)
    with one(path) as database:
        assert run(database, "PRAGMA foreign_keys") == [(1,)]
        assert run(database, "PRAGMA recursive_triggers") == [(1,)]
        assert run(database, "PRAGMA synchronous") == [(2,)]


def test_whoever_holds_the_lock_is_not_stopped_by_what_failed_for_one_who_waits(path):
    """A cursor that dies resets its statement, with Python's lock held, and waits for its
    connection; that one waits for the file's lock. What failed must not die that way."""
    waits, said = threading.Event(), []

    def fail_then_wait():
        with one(path) as database:
            run(database, "PRAGMA busy_timeout = 1")
            cycle = []
            try:
                with transaction_on(database):
                    pass
            except OperationalError as error:
                cycle += [cycle, error]  # garbage that only the collector finds
            del cycle
            run(database, "PRAGMA busy_timeout = 20000")
            waits.set()
            with transaction_on(database):
                run(database, "INSERT INTO t VALUES (1)")
                said.append("done")

    thread = threading.Thread(target=fail_then_wait)
    with one(path) as database, transaction_on(database):
        run(database, "INSERT INTO t VALUES (2)")
        gc.disable()
        try:
            thread.start()
            assert waits.wait(20)
            time.sleep(0.2)  # it is in SQLite by now; if not, this finds nothing
            began = time.monotonic()
            gc.collect()
            took_s = time.monotonic() - began
        finally:
            gc.enable()
    thread.join()
    assert said == ["done"], f"collected for {took_s:.0f} s, until the other one gave up"

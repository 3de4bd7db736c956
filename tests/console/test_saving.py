"""An end that meets a locked database: the save is repeated, and nothing else is (J11)."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from django.db import IntegrityError, OperationalError
from django.db.utils import ConnectionHandler

from console.project.databases import sqlite_database
from console.tasks.saving import saved

pytestmark = pytest.mark.django_db


@pytest.fixture
def table(tmp_path):
    """A connection as it ships, but that it waits for no lock; and one that holds the lock."""
    settings = sqlite_database(tmp_path / "x.sqlite3")
    settings["OPTIONS"]["timeout"] = 0
    handler = ConnectionHandler({"default": settings})
    ours = handler["default"]
    with closing(ours), closing(sqlite3.connect(tmp_path / "x.sqlite3")) as other:
        with ours.cursor() as cursor:
            cursor.execute("CREATE TABLE ends (job INTEGER PRIMARY KEY)")
        other.isolation_level = None
        yield ours, other


class Save:
    """Write the end of job 7; the lock is given back before try number `free_at`."""

    def __init__(self, table, free_at):
        self.ours, self.other = table
        self.free_at, self.tries = free_at, 0

    def __call__(self):
        self.tries += 1
        if self.tries == self.free_at:
            self.other.execute("ROLLBACK")
        with self.ours.cursor() as cursor:
            cursor.execute("INSERT INTO ends VALUES (7)")
        return "saved"

    @property
    def rows(self):
        with self.ours.cursor() as cursor:
            cursor.execute("SELECT job FROM ends")
            return cursor.fetchall()


def test_a_save_that_is_locked_out_is_made_again_until_it_is_in(table):
    table[1].execute("BEGIN IMMEDIATE")
    save = Save(table, free_at=3)
    assert saved(save) == "saved"
    assert (save.tries, save.rows) == (3, [(7,)])


def test_a_database_that_stays_locked_is_said_so_and_a_refusal_is_not_repeated(table):
    """Then the job's lease runs out, and its engine is asked what became of it."""
    table[1].execute("BEGIN IMMEDIATE")
    save = Save(table, free_at=99)
    with pytest.raises(OperationalError, match="locked"):
        saved(save)
    table[1].execute("ROLLBACK")
    assert (save.tries, save.rows) == (5, [])
    save()
    again = Save(table, free_at=0)
    with pytest.raises(IntegrityError):
        saved(again)
    assert again.tries == 1

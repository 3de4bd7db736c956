"""Several readings as of one moment, on the database that we ship, against a writer beside."""

from __future__ import annotations

import threading

import pytest
from django.db import DatabaseError, connection

from console.access import EVERYTHING
from console.consumers.topics import topic_read_for
from console.models import User
from console.selectors.jobs import job_list, jobs_pending
from console.selectors.moment import one_moment

NAME = "moment-test"


@pytest.fixture
def committed(django_db_setup, django_db_blocker):
    """The database without a transaction around the test; what it writes is deleted."""
    with django_db_blocker.unblock():
        yield
        User.objects.filter(username__startswith=NAME).delete()
        connection.close()


def commit_beside(number):
    """Another connection adds a person and commits."""

    def write():
        User.objects.create(username=f"{NAME}-{number}")
        connection.close()

    writer = threading.Thread(target=write)
    writer.start()
    writer.join()


def count():
    return User.objects.filter(username__startswith=NAME).count()


def test_what_is_committed_meanwhile_is_not_seen_and_not_held_up(committed):
    with one_moment():
        seen = [count()]
        for number in range(3):
            commit_beside(number)
            seen.append(count())
    assert (seen, count()) == ([0] * 4, 3)


def test_nothing_can_be_written_inside_that_another_wrote_before(committed):
    with pytest.raises(DatabaseError), one_moment():
        count()
        commit_beside(1)
        User.objects.filter(username__startswith=NAME).update(first_name="x")
    assert count() == 1  # and the connection is good


def test_a_fault_inside_ends_it(committed):
    with pytest.raises(KeyError), one_moment():
        raise KeyError
    with one_moment():
        assert count() == 0


def test_one_inside_another_is_as_of_that_one(committed):
    with one_moment():
        assert count() == 0
        commit_beside(1)
        with one_moment():
            assert count() == 0
        assert count() == 0
    assert count() == 1


@pytest.mark.parametrize(
    "read", [lambda: job_list(rights=EVERYTHING), lambda: jobs_pending(rights=EVERYTHING)]
)
def test_jobs_are_read_so_also_by_pages_and_rest(committed, read):
    """What is read of a job after its row is of the row's moment."""
    said = []

    def hook(execute, sql, params, many, context):
        said.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(hook):
        read()
    assert said[0] == "BEGIN DEFERRED"
    assert said[-1] == "COMMIT"


def test_a_topic_is_read_so(committed, valkey):
    """A job's row and its ranks are two statements: between them, the job may move."""
    moments = []

    def hook(execute, sql, params, many, context):
        found = execute(sql, params, many, context)
        if sql.startswith("SELECT"):
            commit_beside(len(moments))
            moments.append(count_raw(execute, context))
        return found

    def count_raw(execute, context):
        cursor = context["connection"].connection.execute(
            f"SELECT count(*) FROM console_user WHERE username LIKE '{NAME}%'"
        )
        return cursor.fetchone()[0]

    with connection.execute_wrapper(hook):
        topic_read_for("engine:none", [1], {})
    assert len(moments) > 1 and len(set(moments)) == 1

"""Prepared queries find what their querysets find; rows are written as the ORM writes them.

On SQLite and on PostgreSQL, for every prepared query of the console.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.db.models import Model

import console.selectors
import console.services
from console.actors import Actor
from console.choices import Follow, JobState, OnConflict, Via
from console.clock import db_now
from console.ids import uuid7
from console.models import AuditEntry, Engine, Job, JobRankResult, Outbox, User
from console.params import FlushParams
from console.prepared import Prepared, prefetched
from console.project.databases import sqlite_database
from console.rows import row_delete, row_update, rows_insert
from console.selectors.access import rights_of
from console.services.engines import engine_register
from console.services.job_run import job_finish, job_reconcile
from console.services.jobs import Origin, job_create
from console.services.tokens import token_create
from console.services.users import user_create
from tests.console.test_job_services import dispatched, result_of
from tests.fakes.databases import as_default, postgres_database

BY_HAND = Actor.system("test")
MODULES = [
    importlib.import_module(f"{package.__name__}.{found.name}")
    for package in (console.selectors, console.services)
    for found in pkgutil.iter_modules(package.__path__)
]
QUERIES = {
    f"{module.__name__}.{name}": value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, Prepared)
}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(request, tmp_path_factory, django_db_blocker):
    """A database of its own as Django's default one, with rows for every query to find."""
    if request.param == "sqlite":
        settings = sqlite_database(tmp_path_factory.mktemp("prepared") / "console.sqlite3")
    else:
        settings = postgres_database(request.getfixturevalue("postgres_url"), "prepared")
    with django_db_blocker.unblock(), as_default(settings, is_last=True):
        assert connection.vendor == request.param
        call_command("migrate", verbosity=0)
        fill()
        yield request.param


def fill():
    """Two people, tokens, three engines; a job that ended with ranks, one after it, one that waits
    for that, one that is to be cancelled, one of which nothing is known any more."""
    people = [
        user_create(
            username=name,
            password="a-long-enough-password",
            roles=["operator", "auditor"],
            actor=BY_HAND,
        )
        for name in ("ana", "bo")
    ]
    tokens = [token_create(username=one.username, name="ci", actor=BY_HAND).token for one in people]
    engines = [
        engine_register(
            name=name,
            control_address=f"ipc:///nowhere/{name}.c",
            events_address=f"ipc:///nowhere/{name}.e",
            actor=BY_HAND,
        )
        for name in ("local", "other", "lost")
    ]

    def ask(engine, person, key, **more):
        actor = Actor(
            user_id=people[person].pk,
            name=people[person].username,
            via=Via.API,
            token_prefix=f"qsc_{tokens[person].prefix}",
            rights=rights_of(people[person]),
        )
        return job_create(
            engine_name=engine.name,
            params=FlushParams(timeout_s=7.5),
            reason="größer, 更大",
            on_conflict=OnConflict.QUEUE,
            actor=actor,
            idempotency_key=key,
            **more,
        ).job

    first = ask(engines[0], 0, "once")
    sent = dispatched(first)
    ended = job_finish(
        job_id=first.pk,
        attempt=sent.attempt,
        frm=JobState.DISPATCHED,
        result=result_of(first),
        process="worker",
    )
    assert ended is not None
    ask(engines[0], 1, "again", origin=Origin(first, Follow.RETRY))
    ask(engines[0], 1, None)
    sent = dispatched(ask(engines[1], 0, None))
    Job.objects.filter(pk=sent.pk).update(cancel_requested=True)
    lost = dispatched(ask(engines[2], 0, None))
    assert job_reconcile(job_id=lost.pk, attempt=lost.attempt, why="gone", process="worker")


def told(value, depth=2):
    """All that a row holds, of it and of what came with it, which may lead back to it."""
    if not isinstance(value, Model):
        return value
    fields = {field.attname: getattr(value, field.attname) for field in value._meta.concrete_fields}
    came_with = value._state.fields_cache if depth else {}
    related = {name: told(one, depth - 1) for name, one in came_with.items()}
    return type(value), value._state.db, value._state.adding, fields, related


def candidates(kind):
    """Arguments of a kind: what is there, and what is not."""
    if kind is UUID:
        return [*Job.objects.values_list("pk", flat=True), uuid7()]
    if kind is int:
        there = {0, 1, 2**31 - 1, 2**40}
        return sorted(there | {*User.objects.values_list("pk", flat=True)})
    if kind is datetime:
        return [db_now() + timedelta(days=days) for days in (-1, 0, 1)]
    assert kind is str, f"no arguments are known for {kind}"
    words = {"", "once", "w", "' OR 1=1 --", "%s", "ä"}
    words |= {*Engine.objects.values_list("name", flat=True)}
    words |= {*Job.objects.values_list("actor_key", flat=True)}
    words |= {
        text.removeprefix("qsc_") for text in Job.objects.values_list("token_prefix", flat=True)
    }
    return sorted(words)


def test_every_prepared_query_finds_what_its_queryset_finds(database):
    assert len(QUERIES) > 25
    with transaction.atomic():
        for name, query in QUERIES.items():
            found = 0
            for values in itertools.product(*map(candidates, query._kinds)):
                rows = [told(row) for row in query.all(*values)]
                # Twice, as a queryset that is asked anew.
                assert rows == [told(row) for row in query._make(*values)], (name, values)
                assert query.count(*values) == len(rows), (name, values)
                first = query.first(*values)
                assert told(first) == (rows[0] if rows else None), (name, values)
                found += len(rows)
            assert found, f"{name} found nothing, so it was compared with nothing"


def test_what_is_locked_is_locked_in_a_transaction_only(database):
    query = Prepared(lambda pk: Engine.objects.select_for_update().filter(pk=pk), int)
    pk = Engine.objects.values_list("pk", flat=True).first()
    if database == "sqlite":  # a transaction has the whole file
        assert query.first(pk).pk == pk
        return
    with transaction.atomic():
        assert query.first(pk).pk == pk
    with pytest.raises(transaction.TransactionManagementError):
        query.first(pk)


def test_an_argument_that_the_query_does_not_use_as_it_is_is_refused(database):
    with pytest.raises(AssertionError):
        Prepared(lambda q: Engine.objects.filter(name__contains=q), str).all("lo")
    with pytest.raises(AssertionError):
        Prepared(lambda a, b: Engine.objects.filter(name=a), str, str).all("a", "b")
    with pytest.raises(AssertionError):
        Prepared(lambda a: Engine.objects.filter(name=a), str).all("a", "b")


def test_a_moment_is_compared_to_the_microsecond(database):
    query = Prepared(lambda at: Job.objects.filter(created_at__lte=at).values_list("pk"), datetime)
    for job in Job.objects.all():
        assert (job.pk,) in query.all(job.created_at)
        assert (job.pk,) not in query.all(job.created_at - timedelta(microseconds=1))


def test_prefetched_rows_are_not_asked_for_again(database, django_assert_num_queries):
    job = Job.objects.order_by("created_at").first()
    rows = list(JobRankResult.objects.filter(job=job))
    assert len(rows) == 2
    prefetched(job, "ranks", rows)
    with django_assert_num_queries(0):
        assert [row.job is job for row in job.ranks.all()] == [True, True]
        assert len(job.ranks.all()) == 2
    with pytest.raises(AttributeError):  # rather than to find what is not this job's
        job.ranks.filter(dp_rank=1)


# -- writing -----------------------------------------------------------------------------------


def odd_job(**more):
    """A job with something in every field."""
    return Job(
        id=uuid7(),
        engine=Engine.objects.get(name="local"),
        kind="flush_cache",
        params={"timeout_s": 1.5, "ä": ["'", None, True, {"deep": 2**53}]},
        mode="wait",
        timeout_s=0.1,
        requested_by=User.objects.get(username="ana"),
        requested_by_name="ana",
        via=Via.API,
        actor_key="x",
        state=JobState.FAILED,
        reason="%s ' \" \\ größer",
        error=None,
        reply={"n": 1e-9},
        finished_at=datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC),
        created_at=db_now(),
        updated_at=db_now(),
        **more,
    )


def test_a_row_is_inserted_as_the_orm_does(database):
    with transaction.atomic():
        job = odd_job()
        rows_insert([job])
        by_hand = told(Job.objects.get(pk=job.pk))
        Job.objects.filter(pk=job.pk).delete()
        job.save(force_insert=True)
        assert by_hand == told(Job.objects.get(pk=job.pk))
        with pytest.raises(IntegrityError), transaction.atomic():
            rows_insert([job])
        transaction.set_rollback(True)


def test_what_is_there_already_is_updated_and_keeps_its_key(database):
    with transaction.atomic():
        job = Job.objects.order_by("created_at").first()
        before = {row.dp_rank: row for row in job.ranks.all()}
        rows = [
            JobRankResult(job=job, dp_rank=rank, state="failed", message="ä", places={"n": 1})
            for rank in range(3)
        ]
        rows_insert(rows, unique=("job", "dp_rank"), update=("state", "places"))
        after = {row.dp_rank: row for row in JobRankResult.objects.filter(job=job)}
        assert {rank: row.pk for rank, row in before.items()} == {
            rank: after[rank].pk for rank in before
        }
        assert [after[rank].state for rank in range(3)] == ["failed"] * 3
        assert [after[rank].places for rank in range(3)] == [{"n": 1}] * 3
        assert [after[rank].message for rank in range(3)] == ["", "", "ä"]
        transaction.set_rollback(True)


def test_an_update_finds_its_row_or_says_that_there_is_none(database):
    with transaction.atomic():
        job = odd_job()
        rows_insert([job])
        values = {
            "state": JobState.CANCELLED,
            "reply": {"ä": [1]},
            "error": None,
            "finished_at": None,
            "version": 2,
            "engine": Engine.objects.get(name="other").pk,
        }
        assert not row_update(Job, {"id": job.pk, "version": 7}, values)
        assert told(Job.objects.get(pk=job.pk))[3] == told(job)[3] | {"engine_id": job.engine_id}
        assert row_update(Job, {"id": job.pk, "version": 1}, values)
        by_hand = told(Job.objects.get(pk=job.pk))
        Job.objects.filter(pk=job.pk).update(**values)
        assert by_hand == told(Job.objects.get(pk=job.pk))
        assert by_hand[3]["state"] == "cancelled"
        transaction.set_rollback(True)


def test_a_delete_finds_its_row_or_says_that_there_is_none(database):
    with transaction.atomic():
        owed = Outbox.objects.first()
        others = Outbox.objects.exclude(pk=owed.pk).count()
        assert row_delete(Outbox, {"job": owed.job_id})
        assert not row_delete(Outbox, {"job": owed.job_id})
        assert Outbox.objects.count() == others
        transaction.set_rollback(True)


def test_the_log_of_it_all_is_whole(database):
    entries = list(AuditEntry.objects.order_by("seq").values_list("seq", flat=True))
    assert entries == list(range(1, len(entries) + 1)) and len(entries) > 10

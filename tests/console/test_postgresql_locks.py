"""Whoever changes jobs of one engine at once waits for each other in one order: no deadlock.

PostgreSQL ends a deadlock after a second, in which the audit log, and so every change of the whole
console, stands still.
"""

from __future__ import annotations

import ast
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from console import dispatch, notify
from console.actors import Actor
from console.choices import Follow, JobState, OnConflict, Via
from console.clock import db_now
from console.models import Engine, Job, RoleGrant, User
from console.params import FlushParams
from console.selectors.access import rights_of
from console.services import job_control
from console.services.engines import engine_register
from console.services.job_claims import job_adopt, job_claim, job_release
from console.services.job_control import job_cancel
from console.services.job_run import job_expire
from console.services.jobs import Origin, job_create
from console.services.users import user_create
from tests.console.test_job_services import dispatched
from tests.fakes.databases import as_default, postgres_database

BY_HAND = Actor.system("test")
ROUNDS = 12
CONSOLE = Path(__file__).parents[2] / "console"


@pytest.fixture(scope="module")
def database(postgres_url, django_db_blocker):
    """Settings of a database with every migration, one engine and one operator."""
    settings = postgres_database(postgres_url, "locks")
    with django_db_blocker.unblock(), as_default(settings, is_last=True):
        call_command("migrate", verbosity=0)
        engine_register(
            name="local", control_address="ipc:///no.c", events_address="ipc:///no.e", actor=BY_HAND
        )
        user_create(
            username="ana", password="a-long-enough-password", roles=["operator"], actor=BY_HAND
        )
        yield settings


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """Without Redis, and without an engine to tell."""
    monkeypatch.setattr(dispatch, "job_ring", lambda job_id: True)
    monkeypatch.setattr(notify, "job_changed", lambda job_id, has_ended: None)
    monkeypatch.setattr(job_control, "cancel_forward", lambda job: None)


def ask(actor=BY_HAND, origin=None):
    return job_create(
        engine_name="local",
        params=FlushParams(timeout_s=300),
        reason="",
        on_conflict=OnConflict.QUEUE,
        actor=actor,
        origin=origin,
    ).job


def cancel(job):
    return job_cancel(job_id=job.pk, actor=BY_HAND)


def at_once(settings, *acts):
    """Do these in threads of their own, at the same time. Raises what one of them raises."""
    barrier = threading.Barrier(len(acts))

    def do(act):
        with as_default(settings):
            barrier.wait()
            act()

    with ThreadPoolExecutor(len(acts)) as pool:
        done = [pool.submit(do, act) for act in acts]
    for one in done:
        one.result()


def end_all():
    for job in Job.objects.filter(state=JobState.ACCEPTED).order_by("created_at"):
        cancel(job)
    assert not Job.objects.filter(state=JobState.ACCEPTED).exists()


def test_blocked_jobs_are_cancelled_at_once(database):
    for _ in range(ROUNDS):
        first, *others = ask(), ask(), ask()
        claimed = job_claim(job_id=first.pk, owner="w")
        job_release(
            job_id=first.pk, attempt=claimed.attempt, why="held", process="worker",
            blocked_by="a-stranger",
        )  # fmt: skip
        jobs = [first, *others]
        at_once(database, *(lambda job=job: cancel(job) for job in jobs))
        states = Job.objects.filter(pk__in=[job.pk for job in jobs]).values_list("state", flat=True)
        assert set(states) == {JobState.CANCELLED}


def test_a_sent_job_is_cancelled_while_others_are_asked_for(database):
    sent = dispatched(ask())
    for number in range(3 * ROUNDS):
        late_s = random.Random(number).random() * 0.006

        def late(late_s=late_s):
            threading.Event().wait(late_s)
            cancel(sent)

        at_once(database, ask, late)
    Job.objects.filter(pk=sent.pk).update(state=JobState.FAILED, finished_at=db_now())
    end_all()


def test_a_claim_that_rights_forbid_meets_the_cancel_of_the_next_job(database):
    ana = User.objects.get(username="ana")
    (grant,) = RoleGrant.objects.filter(user=ana)
    for _ in range(ROUNDS):
        grant.save(force_insert=not RoleGrant.objects.filter(pk=grant.pk).exists())
        actor = Actor(user_id=ana.pk, name="ana", via=Via.API, rights=rights_of(ana))
        first, following = ask(actor), ask()
        RoleGrant.objects.filter(user=ana).delete()
        at_once(
            database,
            lambda job=first: job_claim(job_id=job.pk, owner="w"),
            lambda job=following: cancel(job),
        )
        first.refresh_from_db()
        assert (first.state, first.error["code"]) == (JobState.FAILED, "forbidden")
        end_all()


def test_a_job_is_repeated_while_it_is_cancelled(database):
    for _ in range(ROUNDS):
        first = ask()
        at_once(
            database,
            lambda job=first: cancel(job),
            lambda job=first: ask(origin=Origin(job, Follow.RETRY)),
        )
        end_all()


def test_a_doorbell_too_many_waits_for_nobody(database):
    """Found as a worker's thread that waited for a dispatch: it wanted to end what was not late."""
    job = ask()
    assert job_claim(job_id=job.pk, owner="w") is not None

    def another():
        connection.cursor().execute("SET lock_timeout = '200ms'")
        try:
            assert job_claim(job_id=job.pk, owner="v") is None
            assert job_adopt(job_id=job.pk, owner="v") is None
            assert job_expire(job_id=job.pk, process="worker") is None
        finally:
            connection.cursor().execute("RESET lock_timeout")

    with transaction.atomic():
        Engine.objects.select_for_update(no_key=True).get()
        at_once(database, another)
    cancel(job)


def test_rows_that_others_refer_to_are_locked_without_their_keys():
    """A new job's references are looked at when it is committed, with the audit log locked: a lock
    that also holds the key would wait for that, and is waited for."""
    calls = [
        (path.name, node)
        for path in sorted(CONSOLE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "select_for_update"
    ]
    assert len(calls) > 8
    for name, call in calls:
        assert "no_key" in {keyword.arg for keyword in call.keywords}, f"{name}:{call.lineno}"

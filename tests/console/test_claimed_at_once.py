"""A claim and a dispatch in one transaction: both are done, or neither is."""

from __future__ import annotations

import json
from datetime import timedelta

import msgspec
import pytest

from console.choices import JobState, OnConflict
from console.clock import db_now
from console.models import AuditEntry, Engine, Job, JobRankResult, Outbox, RoleGrant
from console.services.job_claims import job_claim
from console.services.job_run import job_claim_dispatched, job_dispatched
from engine.protocol import Welcome

pytestmark = pytest.mark.django_db

WELCOME = Welcome(
    protocol_version=1, engine_id="E1", epoch="1", clock_s=5.0, dp_size=2, model="m", ready=True
)


@pytest.fixture(autouse=True)
def known(engine):
    """The process that answers is the one that did before."""
    Engine.objects.filter(pk=engine.pk).update(identity=WELCOME.engine_id)


def rows(job):
    """All that a claim or a dispatch would write."""
    return (
        Job.objects.filter(pk=job.pk).values().get(),
        list(JobRankResult.objects.filter(job=job).values()),
        list(Outbox.objects.values()),
        list(AuditEntry.objects.values_list("seq", "action")),
        list(Engine.objects.values()),
    )


def bodies(job):
    """What the audit entries of its two steps say."""
    entries = AuditEntry.objects.filter(job_id=job.pk, stage="transition").order_by("seq")
    return [{**json.loads(entry.body), "job": "it"} for entry in entries]


def at_once(job, owner="w", welcome=WELCOME, now=None):
    return job_claim_dispatched(job_id=job.pk, owner=owner, welcome=welcome, now=now)


def test_it_is_as_if_they_were_two(ask):
    now = db_now()
    one = at_once(ask(kind="abort_requests", abort_all=True), now=now)
    other = ask(kind="abort_requests", abort_all=True)
    claimed = job_claim(job_id=other.pk, owner="w", now=now)
    two = job_dispatched(
        job_id=other.pk, attempt=claimed.attempt, owner="w", welcome=WELCOME, now=now
    )
    same = ("state", "phase", "attempt", "lease_owner", "lease_until", "version", "engine_epoch")
    assert [getattr(one, name) for name in same] == [getattr(two, name) for name in same]
    assert one.state == JobState.DISPATCHED
    entries = [bodies(job) for job in (one, two)]
    assert entries[0] == entries[1]
    assert [entry["action"] for entry in entries[0]] == ["job.claimed", "job.dispatched"]
    ranks = [[row.state for row in JobRankResult.objects.filter(job=job)] for job in (one, two)]
    assert ranks == [["not_started", "not_started"]] * 2
    assert not Outbox.objects.exists()


def test_only_one_worker_gets_it(ask):
    job = ask()
    assert at_once(job, owner="a").lease_owner == "a"
    before = rows(job)
    assert at_once(job, owner="b") is None
    assert rows(job) == before


@pytest.mark.parametrize("why", ["new process", "role taken", "too late", "engine held"])
def test_what_is_in_the_way_leaves_everything_as_it_was(ask, engine, ana, why):
    held = ask() if why == "engine held" else None
    job = ask(on_conflict=OnConflict.QUEUE)
    welcome, now = WELCOME, None
    if held is not None:
        assert at_once(held)
        Job.objects.filter(pk=job.pk).update(  # let go too early: the index is the last word
            blocked=False, dispatch_by=db_now() + timedelta(seconds=30)
        )
    elif why == "new process":
        welcome = msgspec.structs.replace(WELCOME, engine_id="E2")
    elif why == "role taken":
        RoleGrant.objects.filter(user=ana.user_id).delete()
    else:
        now = job.dispatch_by
    before = rows(job)
    assert at_once(job, welcome=welcome, now=now) is None
    assert rows(job) == before
    assert before[0]["state"] == JobState.ACCEPTED

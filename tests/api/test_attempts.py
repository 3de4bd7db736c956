"""D03: each attempt is one entry, however it ends: who, whence, by which request, and its end."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.test import Client

from console.actors import Actor
from console.models import AuditEntry
from console.services.job_claims import job_claim
from console.services.job_run import job_dispatched, job_expire, job_finish, job_refused
from console.services.tokens import token_create
from console.services.users import user_create
from engine.protocol import ErrorCode, Failure, Outcome
from tests.console.conftest import PASSWORD
from tests.console.test_job_services import WELCOME, result_of

pytestmark = pytest.mark.django_db

FLUSH = {"engine": "local", "kind": "flush_cache"}
KEY = {"Idempotency-Key": "the-key"}


@pytest.fixture
def viewer(db):
    actor = Actor.system("test")
    user_create(username="vera", password=PASSWORD, roles=["viewer"], actor=actor)
    text = token_create(username="vera", name="t", actor=actor).text
    return Client(headers={"authorization": f"Bearer {text}"})


def tries(post, api, viewer):
    """(name, who, the answer, action, result) of one attempt after the other."""

    def cancel(job_id):
        return api.post(f"/api/v1/jobs/{job_id}/cancel", {}, content_type="application/json")

    yield "denied", "vera", post(FLUSH, client=viewer), "request.denied", "denied"
    yield "invalid", "ana", post({**FLUSH, "kind": "x"}), "request.refused", "refused"
    first = post({**FLUSH, "params": {"timeout_s": 5}}, headers=KEY)
    yield "accepted", "ana", first, "job.accepted", "recorded"
    yield "held", "ana", post(FLUSH), "request.refused", "refused"
    again = post({**FLUSH, "params": {"timeout_s": 6}}, headers=KEY)
    yield "a used key", "ana", again, "request.refused", "refused"
    job_id = first.json()["id"]
    yield "cancelled", "ana", cancel(job_id), "job.cancelled", "cancelled"
    yield "cancelled twice", "ana", cancel(job_id), "request.refused", "refused"


def test_each_attempt_is_one_entry_with_its_request(post, api, viewer):
    for name, who, answer, action, result in tries(post, api, viewer):
        (entry,) = AuditEntry.objects.filter(request_id=answer["X-Request-Id"])
        actor = json.loads(entry.body)["actor"]
        assert (entry.actor_name, actor["ip"]) == (who, "127.0.0.1"), name
        assert actor["token"].startswith("qsc_"), name
        assert (entry.action, entry.result) == (action, result), name


def sent(job):
    assert job_claim(job_id=job.pk, owner="w")
    return job_dispatched(job_id=job.pk, attempt=1, owner="w", welcome=WELCOME)


def refused(job):
    failure = Failure(code=ErrorCode.OPERATION_PENDING, message="held", retryable=False)
    job_refused(job_id=sent(job).pk, attempt=1, failure=failure)


def ended(outcome):
    def end(job):
        found = result_of(sent(job), outcome)
        job_finish(job_id=job.pk, attempt=1, frm="dispatched", result=found, process="worker")

    return end


def timed_out(job):
    late = job.dispatch_by + timedelta(seconds=1)
    job_expire(job_id=job.pk, process="reconciler", now=late)


@pytest.mark.parametrize(
    ("end", "result"),
    [
        (refused, "failed"),
        (timed_out, "expired"),
        *((ended(outcome), str(outcome)) for outcome in Outcome),
    ],
)
def test_what_a_worker_writes_is_in_the_name_of_who_asked(ask, end, result):
    job = ask(timeout_s=30)
    end(job)
    (entry,) = AuditEntry.objects.filter(job_id=job.pk, stage="outcome")
    body = json.loads(entry.body)
    assert (body["actor"]["name"], body["actor"]["ip"]) == ("ana", "127.0.0.1")
    assert (entry.result, body["process"] in ("worker", "reconciler")) == (result, True)
    assert AuditEntry.objects.filter(result=result, kind="flush_cache").get() == entry, (
        "found by it"
    )
    accepted = json.loads(AuditEntry.objects.get(job_id=job.pk, stage="intent").body)
    assert accepted["job"] == body["job"], "by which the engine's log and journal name it too"

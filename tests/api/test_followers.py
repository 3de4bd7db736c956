"""POST /jobs/{id}/retry and /undo: new jobs, linked both ways, with what was recorded."""

from __future__ import annotations

import json
import uuid

import pytest

from console.choices import JobState
from console.models import AuditEntry, Job

pytestmark = pytest.mark.django_db


@pytest.fixture
def ended(post):
    """End a job by hand, as its engine would."""

    def do(state=JobState.FAILED, reply=None, *, kind="flush_cache", reason="", **params):
        body = {"engine": "local", "kind": kind, "reason": reason, "params": params}
        made = post(body).json()
        Job.objects.filter(pk=made["id"]).update(state=state, phase=None, reply=reply)
        return made["id"]

    return do


def follow(api, job_id, what, body=None, **headers):
    return api.post(
        f"/api/v1/jobs/{job_id}/{what}", body, content_type="application/json", headers=headers
    )


def read(api, job_id):
    return api.get(f"/api/v1/jobs/{job_id}").json()


@pytest.mark.parametrize("state", ["failed", "partial", "expired", "cancelled", "interrupted"])
def test_a_retry_has_the_recorded_parameters_and_is_linked_both_ways(api, ended, state):
    old = ended(state, timeout_s=7.5, mode="drain", empty_cache=False, reason="first")
    answer = follow(api, old, "retry")
    assert answer.status_code == 202, answer.content
    new = answer.json()
    assert new["params"] == {"timeout_s": 7.5, "mode": "drain", "empty_cache": False}
    assert new["origin"] == {"job": old, "follow": "retry"}
    assert new["reason"] == f"Retry of job {old}" and answer["Location"] == new["links"]["self"]
    assert read(api, old)["followers"] == [{"job": new["id"], "follow": "retry"}]
    body = json.loads(AuditEntry.objects.get(job_id=new["id"], action="job.accepted").body)
    assert (body["origin"], body["follow"]) == (old, "retry")


def test_the_same_key_is_one_retry_and_another_job_is_another_request(api, ended):
    old = ended()
    first = follow(api, old, "retry", **{"Idempotency-Key": "k1"})
    again = follow(api, old, "retry", **{"Idempotency-Key": "k1"})
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json()["id"] == first.json()["id"]
    Job.objects.filter(pk=first.json()["id"]).update(state="failed", phase=None)
    other = follow(api, first.json()["id"], "retry", **{"Idempotency-Key": "k1"})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


def test_what_goes_on_or_succeeded_is_not_retried(api, post, ended):
    old = ended(JobState.SUCCEEDED)
    answer = follow(api, old, "retry")
    assert answer.status_code == 409 and "succeeded" in answer.json()["detail"]
    going = post().json()["id"]
    answer = follow(api, going, "retry")
    assert answer.status_code == 409 and "has not ended" in answer.json()["detail"]
    assert follow(api, uuid.uuid4(), "retry").status_code == 404
    assert follow(api, old, "retry", {"color": "red"}).status_code == 422
    assert Job.objects.count() == 2


def test_a_held_engine_refuses_a_retry_or_lets_it_wait(api, post, ended):
    old = ended()
    holder = post().json()["id"]
    assert follow(api, old, "retry").json()["holder"] == holder
    waiting = follow(api, old, "retry", {"on_conflict": "queue"}).json()
    assert waiting["blocked_by"] == holder


def test_the_inverses_of_a_pause_and_a_release(api, ended):
    pause = ended(JobState.SUCCEEDED, kind="pause_generation", pause_mode="retract")
    undone = follow(api, pause, "undo", {"reason": "enough"}).json()
    assert (undone["kind"], undone["reason"]) == ("continue_generation", "enough")
    assert undone["origin"] == {"job": pause, "follow": "undo"}
    Job.objects.filter(pk=undone["id"]).update(state="succeeded", phase=None)
    release = ended(JobState.SUCCEEDED, kind="release_memory", tags=["weights"])
    undone = follow(api, release, "undo").json()
    assert (undone["kind"], undone["params"]) == ("resume_memory", {"tags": ["weights"]})


@pytest.mark.parametrize(
    ("kind", "state", "why"),
    [
        ("flush_cache", "succeeded", "no inverse"),
        ("flush_cache", "failed", "only what succeeded"),
        ("clear_storage_backend", "succeeded", "what was deleted is gone"),
    ],
)
def test_what_has_no_inverse_says_why(api, ended, kind, state, why):
    old = ended(state, kind=kind)
    answer = follow(api, old, "undo")
    assert answer.status_code == 409 and why in answer.json()["detail"]


@pytest.mark.parametrize("state", ["succeeded", "partial", "interrupted", "dispatched"])
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"kind": "pause_generation"}, {"kind": "continue_generation"}),
        ({"kind": "pause_generation"}, {"kind": "pause_generation"}),
        (
            {"kind": "release_memory", "tags": ["weights"]},
            {"kind": "resume_memory", "tags": ["weights"]},
        ),
    ],
)
def test_what_a_later_job_changed_is_not_undone(api, ended, first, then, state):
    old, later = ended(JobState.SUCCEEDED, **first), ended(state, **then)
    answer = follow(api, old, "undo", {"on_conflict": "queue"})
    assert answer.status_code == 409 and "changed since" in answer.json()["detail"]
    assert later in answer.json()["detail"] and Job.objects.count() == 2


def test_what_had_no_effect_or_changes_something_else_is_in_no_undos_way(api, ended):
    old = ended(JobState.SUCCEEDED, kind="pause_generation")
    ended(JobState.FAILED, kind="continue_generation")
    ended(JobState.CANCELLED, kind="continue_generation")
    ended(JobState.SUCCEEDED, kind="flush_cache")
    ended(JobState.SUCCEEDED, kind="release_memory", tags=["weights"])
    assert follow(api, old, "undo").status_code == 202


def test_a_second_pause_is_not_lifted_by_the_undo_of_the_first(api, ended):
    first = ended(JobState.SUCCEEDED, kind="pause_generation")
    ended(JobState.SUCCEEDED, kind="continue_generation")
    second = ended(JobState.SUCCEEDED, kind="pause_generation")
    assert follow(api, first, "undo").status_code == 409
    assert follow(api, second, "undo").status_code == 202


def test_an_undo_is_made_once_and_the_same_key_is_answered_with_it(api, ended):
    old = ended(JobState.SUCCEEDED, kind="pause_generation")
    key = {"Idempotency-Key": "k1"}
    first = follow(api, old, "undo", {"on_conflict": "queue"}, **key)
    again = follow(api, old, "undo", {"on_conflict": "queue"}, **key)
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json()["id"] == first.json()["id"]
    assert follow(api, old, "undo", {"on_conflict": "queue"}).status_code == 409

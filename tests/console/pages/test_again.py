"""Retry on pages: where it is offered, what the form asks, and the links both ways."""

from __future__ import annotations

import uuid

import pytest

from console.choices import JobState
from console.exceptions import Conflict
from console.models import Job
from console.services.job_again import job_undo
from engine.protocol import MemoryTag, PauseMode

pytestmark = pytest.mark.django_db


@pytest.fixture
def ended(ask):
    def do(state="failed", **params):
        job = ask(**params)
        Job.objects.filter(pk=job.pk).update(state=state, phase=None)
        return job

    return do


def post(page, job, **data):
    form = {"reason": "once more", "confirm": "local", "key": str(uuid.uuid4()), **data}
    return page.post(f"/jobs/{job.pk}/retry", form)


@pytest.mark.parametrize(
    ("state", "is_offered"),
    [("failed", True), ("partial", True), ("expired", True), ("succeeded", False)],
)
def test_it_is_offered_where_a_job_did_not_succeed(page, ended, state, is_offered):
    job = ended(state)
    text = page.get(f"/jobs/{job.pk}").content.decode()
    assert ("Retry…" in text) == is_offered
    assert page.get(f"/jobs/{job.pk}/retry").status_code == (200 if is_offered else 409)


def test_the_form_shows_what_was_recorded_and_makes_a_linked_job(page, ended):
    old = ended(timeout_s=7.5, mode="drain")
    text = page.get(f"/jobs/{old.pk}/retry").content.decode()
    assert "<code>7.5</code>" in text and "Type <code>local</code> to confirm" in text
    key = str(uuid.uuid4())
    answer = post(page, old, key=key)
    new = Job.objects.get(origin=old)
    assert (answer.status_code, answer["Location"]) == (303, f"/jobs/{new.pk}")
    assert (new.params["timeout_s"], new.reason, new.via) == (7.5, "once more", "ui")
    assert f"/jobs/{old.pk}" in page.get(f"/jobs/{new.pk}").content.decode()
    assert f"/jobs/{new.pk}" in page.get(f"/jobs/{old.pk}").content.decode()
    assert post(page, old, key=key)["Location"] == f"/jobs/{new.pk}"
    assert Job.objects.count() == 2


def test_a_form_that_is_not_right_makes_no_job(page, ended):
    old = ended()
    for data, word in (
        ({"reason": ""}, "Write a reason"),
        ({"confirm": "loca"}, "Type local to confirm."),
    ):
        answer = post(page, old, **data)
        assert answer.status_code == 422 and word in answer.content.decode()
    assert Job.objects.count() == 1


def test_a_refusal_names_the_holder(page, ended, ask):
    old = ended()
    holder = ask()
    answer = post(page, old)
    assert answer.status_code == 409 and f"/jobs/{holder.pk}" in answer.content.decode()


@pytest.mark.parametrize(
    ("params", "as_left", "changed"),
    [
        (
            {"kind": "pause_generation", "pause_mode": "retract"},
            {"paused": PauseMode.RETRACT},
            [{"paused": None}, {"paused": PauseMode.ABORT}],
        ),
        (
            {"kind": "release_memory", "tags": ["weights"]},
            {"released": [MemoryTag.WEIGHTS]},
            [{"released": []}, {"released": [MemoryTag.KV_CACHE]}],
        ),
    ],
)
def test_what_the_engine_shows_to_be_changed_is_not_undone(
    seen, ask, ana, params, as_left, changed
):
    """By somebody who asked the engine itself: no job of the console tells of it."""
    job = ask(**params)
    Job.objects.filter(pk=job.pk).update(state=JobState.SUCCEEDED, phase=None)
    for state in changed:
        seen(**state)
        with pytest.raises(Conflict, match="changed since"):
            job_undo(job_id=job.pk, actor=ana)
    seen(**as_left)
    assert job_undo(job_id=job.pk, actor=ana).job.origin == job

"""A job's way through the real processes: API → database → worker → engine → database → API."""

from __future__ import annotations

import math
import time
from datetime import datetime, timedelta

import pytest

from engine.protocol import ErrorCode, Mode
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.process


def test_a_flush_of_an_idle_engine_succeeds_on_every_rank(stack, stack_engine):
    job_id = stack.submit(stack_engine, timeout_s=300)
    job = stack.ended(job_id)
    assert (job["state"], job["phase"], job["error"]) == ("succeeded", None, None)
    assert [(rank["dp_rank"], rank["state"]) for rank in job["ranks"]] == [
        (0, "succeeded"),
        (1, "succeeded"),
    ]
    assert job["started_at"] and job["finished_at"] and job["deadline_at"]
    assert stack.audit(job_id) == [
        "job.accepted",
        "job.claimed",
        "job.dispatched",
        "job.succeeded",
    ]
    assert stack_engine.journal.effects == [job_id]


def test_a_busy_engine_is_waited_for_and_says_what_is_running(stack, stack_engine):
    stack_engine.busy(1)
    job_id = stack.submit(stack_engine, timeout_s=300)
    job = stack.until(job_id, phase="waiting for idle")
    assert [rank["message"] for rank in job["ranks"]] == ["running=1", "running=1"]
    stack_engine.idle()
    assert stack.ended(job_id)["state"] == "succeeded"
    (submit,) = stack_engine.submits(job_id)
    assert submit.mode is Mode.WAIT


def test_a_busy_engine_refuses_timeout_0_at_once_with_counts(stack, stack_engine):
    stack_engine.busy(3)
    job = stack.ended(stack.submit(stack_engine, timeout_s=0))
    assert job["state"] == "failed"
    assert "running=3" in job["error"]["message"]
    assert stack_engine.journal.effects == []


def test_a_deadline_passes_and_nothing_is_changed(stack, stack_engine):
    stack_engine.busy(1)
    asked_at = time.monotonic()
    job = stack.ended(stack.submit(stack_engine, timeout_s=2))
    took_s = time.monotonic() - asked_at
    assert job["state"] == "expired"
    assert took_s > 1.5  # early by as long as the engine's clock took to be asked
    assert stack_engine.journal.effects == []


def test_f03_the_timeout_reaches_the_engine_from_the_api_and_what_is_left_of_it(
    stack, stack_engine
):
    stack_engine.busy(1)
    job_id = stack.submit(stack_engine, timeout_s=77.5)
    job = stack.until(job_id, phase="waiting for idle")
    (submit,) = stack_engine.submits(job_id)
    assert job["params"]["timeout_s"] == 77.5
    assert submit.timeout_s == 77.5
    time.sleep(0.5)
    assert stack.job(job_id)["state"] == "dispatched"
    stack_engine.idle()
    assert stack.ended(job_id)["state"] == "succeeded"


def test_f03_a_timeout_in_the_wrong_place_is_refused_not_dropped(stack, stack_engine):
    body = {"engine": stack_engine.name, "kind": "flush_cache"}
    answer = stack.request("POST", "/jobs?timeout=7.5", json=body)
    assert answer.status_code == 422
    assert "timeout" in answer.json()["detail"]
    answer = stack.request("POST", "/jobs", json={**body, "timeout_s": 7.5})
    assert answer.status_code == 422


def test_f02_a_second_flush_is_refused_at_once_naming_the_first(stack, stack_engine):
    stack_engine.busy(1)
    first = stack.submit(stack_engine, timeout_s=900)
    answer = stack.ask(stack_engine, timeout_s=900)
    assert answer.status_code == 409
    assert stack.job(first)["finished_at"] is None  # and was not waited for
    problem = answer.json()
    assert problem["holder"] == first
    assert 0 < problem["remaining_s"] <= 900
    stack_engine.idle()
    assert stack.ended(first)["state"] == "succeeded"
    assert stack_engine.journal.effects == [first]


def test_a_strangers_operation_is_named_in_the_409_and_waited_for_by_a_queued_job(
    stack, stack_engine
):
    stack_engine.busy(1)
    stack_engine.hold("http-17", timeout_s=900)
    name = stack_engine.name

    def seen():
        return (stack.engine(name)["pending_operation"] or {}).get("op_id") == "http-17"

    wait_until(seen)
    answer = stack.ask(stack_engine, timeout_s=5)
    assert (answer.status_code, answer.json()["holder"]) == (409, "http-17")
    assert 0 < answer.json()["remaining_s"] <= 900
    queued = stack.submit(stack_engine, timeout_s=900, on_conflict="queue")
    job = stack.until(queued, phase="blocked")
    assert (job["blocked_by"], job["deadline_at"]) == ("http-17", None)
    stack_engine.idle()
    job = stack.ended(queued)
    assert job["state"] == "succeeded"
    assert stack_engine.journal.effects == ["http-17", queued]


def test_a_refusal_by_the_engine_itself_fails_the_job_and_names_the_holder(stack, stack_engine):
    stack_engine.refuse_submit = ErrorCode.OPERATION_PENDING
    job = stack.ended(stack.submit(stack_engine, timeout_s=300))
    assert job["state"] == "failed"
    assert job["error"]["code"] == "operation_pending"
    assert "holder" in job["error"]


def test_a_queued_job_gets_its_deadline_when_it_is_unblocked(stack, stack_engine):
    stack_engine.busy(1)
    first = stack.submit(stack_engine, timeout_s=900)
    second = stack.submit(stack_engine, timeout_s=900, on_conflict="queue")
    job = stack.job(second)
    assert (job["phase"], job["blocked_by"], job["deadline_at"]) == ("blocked", first, None)
    time.sleep(0.6)
    stack_engine.idle()
    assert stack.ended(first)["state"] == "succeeded"
    job = stack.ended(second)
    assert job["state"] == "succeeded"
    accepted, deadline = (
        datetime.fromisoformat(job[name]) for name in ("created_at", "deadline_at")
    )
    assert deadline - accepted > timedelta(seconds=900.5)  # of the wait it was not taken


def test_f08_a_refused_flush_is_not_repeated_and_its_reason_is_kept_verbatim(stack, stack_engine):
    stack_engine.busy(2)
    job = stack.ended(stack.submit(stack_engine, timeout_s=0))
    time.sleep(2.5)  # longer than the reconciler's pass and the doorbell's pause
    assert len(stack_engine.submits(job["id"])) == 1
    assert job["state"] == "failed"
    assert job["attempt"] == 1
    assert job["error"]["message"].startswith("not idle: running=2")
    assert job["reply"]["message"] == job["error"]["message"]


def test_j01_duplicate_deliveries_and_two_workers_send_one_command(stack, stack_engine):  # J01
    stack.start("worker2")
    try:
        stack_engine.busy(1)
        job_id = stack.submit(stack_engine, timeout_s=300)
        for _ in range(20):
            stack.ring(job_id)
        stack.until(job_id, phase="waiting for idle")
        for _ in range(20):
            stack.ring(job_id)
        time.sleep(1.0)
        stack_engine.idle()
        assert stack.ended(job_id)["state"] == "succeeded"
        for _ in range(5):
            stack.ring(job_id)
        time.sleep(0.5)
    finally:
        stack.kill("worker2")
    assert len(stack_engine.submits(job_id)) == 1
    assert stack.audit(job_id).count("job.dispatched") == 1
    assert stack.audit(job_id).count("job.succeeded") == 1


def test_j03_many_jobs_run_once_each_in_order(stack, stack_engine):  # J03
    ids = [stack.submit(stack_engine, timeout_s=300, on_conflict="queue") for _ in range(25)]
    wait_until(lambda: stack.job(ids[-1])["state"] == "succeeded", every_s=0.1)
    assert stack_engine.journal.effects == ids
    assert [submit.op_id for submit in stack_engine.submits()] == ids


def test_cancel_before_and_during_the_wait(stack, stack_engine):  # J05
    stack_engine.busy(1)
    first = stack.submit(stack_engine, timeout_s=300)
    blocked = stack.submit(stack_engine, timeout_s=300, on_conflict="queue")
    answer = stack.request("POST", f"/jobs/{blocked}/cancel", json={"reason": "not needed"})
    assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
    stack.until(first, phase="waiting for idle")
    assert stack.request("POST", f"/jobs/{first}/cancel").status_code == 200
    assert stack.ended(first)["state"] == "cancelled"
    again = stack.request("POST", f"/jobs/{first}/cancel")
    assert (again.status_code, again.json()["code"]) == (409, "job_finished")
    assert stack_engine.submits(blocked) == []
    assert stack_engine.journal.effects == []


def test_extend_moves_the_deadline_and_force_takes_the_harsher_mode(stack, stack_engine):
    stack_engine.busy(1)
    job_id = stack.submit(stack_engine, timeout_s=300)
    before = stack.until(job_id, phase="waiting for idle")
    deadline = stack_engine.pending.deadline
    extended = stack.request("POST", f"/jobs/{job_id}/extend", json={"by_s": 30}).json()
    assert extended["deadline_at"] > before["deadline_at"]
    assert stack_engine.pending.deadline == deadline + 30
    assert stack.request("POST", f"/jobs/{job_id}/force").json()["mode"] == "drain"
    assert stack.request("POST", f"/jobs/{job_id}/force").status_code == 200
    job = stack.ended(job_id)
    assert (job["state"], job["mode"]) == ("succeeded", "abort")
    assert {"job.extend_requested", "job.force_requested"} <= set(stack.audit(job_id))


def test_a_cancel_after_the_decision_is_refused_and_the_job_ends_by_the_engine(stack, stack_engine):
    """J05: what was decided ends by what the engine says, not by the wish."""
    stack_engine.commit_s = math.inf
    job_id = stack.submit(stack_engine, timeout_s=300)
    stack.until(job_id, phase="committing")
    answer = stack.request("POST", f"/jobs/{job_id}/cancel")
    assert (answer.status_code, answer.json()["engine_code"]) == (409, "not_cancellable")
    stack_engine.commit_s = 0.0
    job = stack.ended(job_id)
    assert (job["state"], job["cancel_requested"]) == ("succeeded", False)


def test_some_ranks_failing_is_partial_and_names_them(stack, stack_engine):
    stack_engine.fail_ranks = {1}
    job = stack.ended(stack.submit(stack_engine, timeout_s=300))
    assert job["state"] == "partial"
    assert [rank["state"] for rank in job["ranks"]] == ["succeeded", "failed"]
    assert job["error"]["code"] == "partial"

"""A job's way through the real processes: API → database → worker → engine → database → API."""

from __future__ import annotations

import time

import pytest

from engine.protocol import Mode

pytestmark = pytest.mark.process


def test_a_flush_of_an_idle_engine_succeeds_on_every_rank(stack, stack_engine):
    job_id = stack.submit(stack_engine, timeout_s=10)
    job = stack.job(job_id, wait_s=10)
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
    job_id = stack.submit(stack_engine, timeout_s=30)
    job = stack.until(job_id, phase="waiting for idle")
    assert [rank["message"] for rank in job["ranks"]] == ["running=1", "running=1"]
    stack_engine.idle()
    idle_at = time.monotonic()
    assert stack.job(job_id, wait_s=10)["state"] == "succeeded"
    assert time.monotonic() - idle_at < 1.0
    (submit,) = stack_engine.submits(job_id)
    assert submit.mode is Mode.WAIT


def test_a_busy_engine_refuses_timeout_0_at_once_with_counts(stack, stack_engine):
    stack_engine.busy(3)
    job = stack.job(stack.submit(stack_engine, timeout_s=0), wait_s=10)
    assert job["state"] == "failed"
    assert "running=3" in job["error"]["message"]
    assert stack_engine.journal.effects == []


def test_a_deadline_passes_on_time_and_nothing_is_changed(stack, stack_engine):
    stack_engine.busy(1)
    asked_at = time.monotonic()
    job = stack.job(stack.submit(stack_engine, timeout_s=3), wait_s=10)
    took_s = time.monotonic() - asked_at
    assert job["state"] == "expired"
    assert 2.8 <= took_s <= 3.5
    assert stack_engine.journal.effects == []

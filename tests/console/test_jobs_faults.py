"""Killed workers, dead engines, lost answers, an emptied Redis: the job ends with the truth."""

from __future__ import annotations

import time

import pytest

from engine.protocol import Outcome
from tests.fakes.engine import FakeEngine, Journal
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def restarted_worker(stack):
    """The worker is there again after the test."""
    yield
    if "worker" not in stack.parts:
        stack.start("worker")


def kill_worker(stack):
    stack.kill("worker")
    stack.start("worker")


def test_f13_a_worker_killed_while_waiting_leaves_a_job_that_ends_with_the_truth(
    stack, stack_engine, restarted_worker
):  # J09
    """And the engine is not locked: a second flush is told who holds it, and follows it."""
    stack_engine.busy(1)
    first = stack.submit(stack_engine, timeout_s=300)
    stack.until(first, phase="waiting for idle")
    kill_worker(stack)
    answer = stack.ask(stack_engine, timeout_s=300)
    assert (answer.status_code, answer.json()["holder"]) == (409, first)
    queued = stack.submit(stack_engine, timeout_s=300, on_conflict="queue")
    stack.until(first, state="reconciling", phase="unknown")
    stack_engine.idle()
    job = stack.ended(first)
    assert job["state"] == "succeeded"
    assert "reconciled" in job["note"]
    assert stack.audit(first)[-2:] == ["job.reconciling", "job.succeeded"]
    assert stack.ended(queued)["state"] == "succeeded"
    assert stack_engine.journal.effects == [first, queued]
    assert len(stack_engine.submits(first)) == 1


def test_an_engine_killed_and_restarted_shows_offline_unknown_and_then_the_truth(
    stack, stack_engine
):  # J10
    stack_engine.busy(1)
    job_id = stack.submit(stack_engine, timeout_s=300)
    stack.until(job_id, phase="waiting for idle")
    pending = stack_engine.pending
    stack_engine.stop()
    wait_until(lambda: not stack.engine(stack_engine.name)["online"])
    job = stack.until(job_id, state="reconciling", phase="unknown")
    assert stack.ask(stack_engine, timeout_s=300).status_code == 409
    time.sleep(1.5)
    assert stack.job(job_id)["state"] == "reconciling"
    stack_engine._record(pending, Outcome.FAILED, "the engine restarted before the decision")
    stack_engine.idle()
    stack_engine.start()
    job = stack.ended(job_id)
    assert job["state"] == "failed"
    assert "restarted" in job["error"]["message"]
    wait_until(lambda: stack.engine(stack_engine.name)["online"])
    assert stack.ended(stack.submit(stack_engine, timeout_s=300))["state"] == "succeeded"


def test_a_lost_answer_is_asked_for_and_the_effect_is_not_repeated(stack, stack_engine):  # J10
    stack_engine.drop_answers = True
    job = stack.ended(stack.submit(stack_engine, timeout_s=10))
    assert job["state"] == "succeeded"
    assert len(stack_engine.submits(job["id"])) == 1
    assert stack_engine.journal.effects == [job["id"]]


def test_an_engine_that_never_got_the_command_seals_it(stack, stack_engine):
    stack_engine.drop_submits = True
    job_id = stack.submit(stack_engine, timeout_s=10)
    job = stack.ended(job_id)
    assert (job["state"], job["error"]["code"]) == ("failed", "never_ran")
    assert job_id in stack_engine.journal.sealed
    assert stack_engine.journal.effects == []


def test_another_engine_at_the_address_interrupts_the_job_with_what_was_observed(
    stack, stack_engine
):  # J10
    stack_engine.busy(1)
    job_id = stack.submit(stack_engine, timeout_s=300)
    stack.until(job_id, phase="waiting for idle")
    stack_engine.stop()
    stack_engine.journal = Journal()
    stack_engine.idle()
    stack_engine.start()
    job = stack.ended(job_id)
    assert (job["state"], job["error"]["code"]) == ("interrupted", "journal_lost")
    assert job["reply"]["observed"]["engine_id"] == stack_engine.journal.engine_id


def test_z01_an_engine_that_is_not_there_is_waited_for_and_the_next_job_needs_no_restart(
    stack, stack_engine
):  # Z01
    stack_engine.stop()
    asked_at = time.monotonic()
    job = stack.ended(stack.submit(stack_engine, timeout_s=2))
    assert time.monotonic() - asked_at > 1.5
    assert (job["state"], job["error"]["code"]) == ("expired", "engine_unreachable")
    said = f"engine {stack_engine.name} does not answer; nothing was sent"
    assert job["error"]["message"] == said
    silent = stack.engine(stack_engine.name)
    assert (silent["online"], [rank["idle"] for rank in silent["ranks"]]) == (False, [None, None])
    stack_engine.start()
    assert stack.ended(stack.submit(stack_engine, timeout_s=5))["state"] == "succeeded"


def test_z01_an_engine_killed_after_it_got_the_request_does_not_spoil_the_next(stack, stack_engine):
    """Z01: no socket is left waiting for the reply that was lost."""
    stack_engine.busy(1)
    first = stack.submit(stack_engine, timeout_s=300)
    stack.until(first, phase="waiting for idle")
    stack_engine.idle()
    stack_engine.restart(outcome=Outcome.FAILED)
    assert stack.ended(first)["state"] == "failed"
    assert stack.ended(stack.submit(stack_engine, timeout_s=300))["state"] == "succeeded"


def test_an_if_idle_job_expires_after_its_dispatch_window_and_is_not_sent(stack, stack_engine):
    stack_engine.stop()
    job_id = stack.submit(stack_engine, timeout_s=0)
    (row,) = stack.sql(
        "SELECT dispatch_by, created_at FROM console_job WHERE id = ?", job_id.replace("-", "")
    )
    assert row[0] > row[1]
    # Nobody waits half a minute in a test: the window is moved to the past.
    stack.sql(
        "UPDATE console_job SET dispatch_by = created_at WHERE id = ?", job_id.replace("-", "")
    )
    job = stack.ended(job_id)
    assert job["state"] == "expired"
    stack_engine.start()
    assert stack_engine.submits(job_id) == []


def test_an_emptied_redis_loses_no_job(stack, stack_engine, restarted_worker):
    stack.kill("worker")
    job_id = stack.submit(stack_engine, timeout_s=300)
    stack.redis().flushall()
    stack.start("worker")
    assert stack.ended(job_id)["state"] == "succeeded"
    assert stack_engine.journal.effects == [job_id]


def test_a_job_is_accepted_without_redis_and_runs_once_it_is_back(stack, stack_engine):
    stack.kill("valkey")
    try:
        job_id = stack.submit(stack_engine, timeout_s=300)
        assert stack.engine(stack_engine.name)["online"] is False
        assert stack.health()["parts"]["redis"] is False
    finally:
        stack.start("valkey")
    assert stack.ended(job_id)["state"] == "succeeded"
    wait_until(lambda: stack.health()["status"] == "ok")


def test_two_jobs_on_two_engines_do_not_wait_for_each_other(stack, stack_engine):
    with FakeEngine(stack.run_dir) as other:
        stack.register(other)
        stack_engine.busy(1)
        waiting = stack.submit(stack_engine, timeout_s=300)
        assert stack.ended(stack.submit(other, timeout_s=300))["state"] == "succeeded"
        assert stack.job(waiting)["state"] in ("claimed", "dispatched")
        stack_engine.idle()
        assert stack.ended(waiting)["state"] == "succeeded"

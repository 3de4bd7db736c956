"""Workers that are gone for good: what was cancelled is not run, the rest ends with the truth.

One outage for all tests here: three workers hold a job each and die, with them whoever looks after
lapsed jobs and the web process; others take their place.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from engine.protocol import Cancel
from tests.fakes.engine import FakeEngine
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.process

QUEUE = "quiesce.jobs"
VERSION = "update_weight_version"


def cancelled(stack, job_id):
    answer = stack.request("POST", f"/jobs/{job_id}/cancel")
    assert answer.status_code == 200, answer.text
    return answer.json()


def held_by_workers(stack, at):
    """A job of each engine: one is claimed, for nobody answers; two are sent, and wait."""
    at["sent"].busy(1)
    at["cancelling"].busy(1)
    jobs = {name: stack.submit(at[name], timeout_s=300) for name in ("sent", "cancelling")}
    for job_id in jobs.values():
        stack.until(job_id, phase="waiting for idle")
    jobs["behind"] = stack.submit(at["sent"], kind=VERSION, new_version="v9", on_conflict="queue")
    at["claimed"].drop_everything = True
    jobs["claimed"] = stack.submit(at["claimed"], timeout_s=300)
    stack.until(jobs["claimed"], state="claimed")
    return jobs


def owner_is_gone(stack):
    """The leases are of a host that is no more, and have run out: nobody waits them out here."""
    stack.sql(
        "UPDATE console_job SET lease_owner = 'gone:1:0', lease_until = created_at"
        " WHERE lease_until IS NOT NULL"
    )


@pytest.fixture(scope="module")
def outage(stack):
    with contextlib.ExitStack() as made:
        names = ("sent", "cancelling", "claimed", "queued", "other")
        at = {name: made.enter_context(FakeEngine(stack.run_dir)) for name in names}
        with ThreadPoolExecutor(len(at)) as pool:
            list(pool.map(stack.register, at.values()))
        jobs = held_by_workers(stack, at)
        for part in ("worker", "reconcile"):
            stack.kill(part)
        jobs["queued"] = stack.submit(at["queued"], timeout_s=300)
        stack.redis().delete(QUEUE)  # and its message is lost
        unwanted = [
            stack.submit(at["other"], timeout_s=300),
            stack.submit(at["other"], kind=VERSION, new_version="v8", on_conflict="queue"),
        ]
        ends = [cancelled(stack, job_id)["state"] for job_id in reversed(unwanted)]
        for job_id in unwanted:
            stack.ring(job_id)
        jobs["wanted"] = stack.submit(at["other"], timeout_s=300)
        at["cancelling"].drop_everything = True
        assert cancelled(stack, jobs["cancelling"])["cancel_requested"]
        held = {name: stack.job(job_id)["state"] for name, job_id in jobs.items()}
        stack.kill("web")
        at["sent"].idle()  # the engine ends it while nobody is there to hear of it
        wait_until(lambda: at["sent"].journal.finished)
        owner_is_gone(stack)
        at["claimed"].drop_everything = at["cancelling"].drop_everything = False
        for part in ("worker", "reconcile", "web"):
            stack.start(part)
        wait_until(stack.is_well)
        yield SimpleNamespace(
            stack=stack, at=at, jobs=jobs, unwanted=unwanted, ends=ends, held=held
        )


def test_what_was_cancelled_while_no_worker_was_there_is_never_run(outage):
    """J05: their messages waited in the broker for the workers that came."""
    stack, other = outage.stack, outage.at["other"]
    assert outage.ends == ["cancelled"] * 2
    assert stack.ended(outage.jobs["wanted"])["state"] == "succeeded"
    wait_until(lambda: not stack.redis().llen(QUEUE))
    assert [submit.op_id for submit in other.submits()] == [outage.jobs["wanted"]]
    for job_id in outage.unwanted:
        assert stack.job(job_id)["state"] == "cancelled"
        assert stack.audit(job_id) == ["job.accepted", "job.cancelled"]


def test_every_open_state_of_a_host_that_is_gone_is_left_and_the_next_job_goes(outage):
    """J09: queued, claimed, sent, being cancelled; an update waited behind the sent one."""
    stack, jobs, at = outage.stack, outage.jobs, outage.at
    states = {name: outage.held[name] for name in ("queued", "claimed", "sent", "cancelling")}
    assert list(states.values()) == ["accepted", "claimed", "dispatched", "dispatched"]
    ends = {name: stack.ended(jobs[name])["state"] for name in (*states, "behind")}
    assert list(ends.values()) == ["succeeded"] * 3 + ["cancelled", "succeeded"]
    for name in states:
        assert len(at[name].submits(jobs[name])) == 1, name
    assert at["sent"].journal.effects == [jobs["sent"], jobs["behind"]]
    assert at["cancelling"].journal.effects == []
    assert at["cancelling"].commands(Cancel), "the wish was repeated"


def test_what_the_engine_did_while_the_console_was_away_is_told_once(outage):
    """J10: not failed and then succeeded, and no step of it twice."""
    stack, job_id = outage.stack, outage.jobs["sent"]
    job = stack.ended(job_id)
    assert (job["state"], job["error"]) == ("succeeded", None)
    assert "reconciled" in job["note"]
    assert [rank["dp_rank"] for rank in job["ranks"]] == [0, 1]
    steps = ("accepted", "claimed", "dispatched", "reconciling", "succeeded")
    assert stack.audit(job_id) == [f"job.{step}" for step in steps]

"""What cannot be recorded is not done, in a worker either (D03)."""

from __future__ import annotations

import pytest

from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.process

WHY = "no entry of a sending today"


@pytest.fixture
def unwritable(stack):
    """The entry that a job is sent cannot be written; every other one can."""
    stack.sql(
        "CREATE TRIGGER unwritable BEFORE INSERT ON console_auditentry"
        f" WHEN NEW.action = 'job.dispatched' BEGIN SELECT RAISE(ABORT, '{WHY}'); END"
    )
    yield
    stack.sql("DROP TRIGGER IF EXISTS unwritable")


def test_a_job_is_not_sent_while_its_entry_cannot_be_written(stack, stack_engine, unwritable):
    job_id = stack.submit(stack_engine, kind="update_weight_version", new_version="v7")
    wait_until(lambda: WHY in stack.log("worker"))
    assert stack_engine.submits() == []
    assert stack.job(job_id)["state"] in ("claimed", "accepted")  # when its lease has run out
    stack.sql("DROP TRIGGER unwritable")
    # Nobody waits a lease out in a test.
    stack.sql(
        "UPDATE console_job SET lease_until = created_at WHERE id = ?", job_id.replace("-", "")
    )
    assert stack.ended(job_id)["state"] == "succeeded"
    assert len(stack_engine.submits(job_id)) == 1
    assert stack.audit(job_id).count("job.dispatched") == 1

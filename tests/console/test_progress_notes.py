"""What an engine tells between sending and answer: written if it lasts, left out if it is over."""

from __future__ import annotations

import pytest

from console.actors import Actor
from console.choices import JobState
from console.services.engines import engine_register
from console.tasks import carry
from tests.fakes.engine import FakeEngine


@pytest.fixture
def engine(db, tmp_path):
    """A registered engine that answers; `ask` asks it."""
    with FakeEngine(tmp_path, name="local") as fake:
        yield engine_register(
            name="local",
            control_address=fake.control_address,
            events_address=fake.events_address,
            actor=Actor.system("test"),
        )


def versions_of(job):
    """How often the job's row was changed on its way."""
    before = job.version
    carry.job_carry(job_id=job.pk, owner="me")
    job.refresh_from_db()
    assert job.state == JobState.SUCCEEDED
    return job.version - before


def test_a_progress_that_is_over_costs_no_commit_and_one_that_lasts_is_written(
    engine, ask, valkey, monkeypatch
):
    monkeypatch.setattr(carry, "NOTE_AFTER_S", 3600.0)
    quick = ask()
    assert versions_of(quick) == len(("claimed", "dispatched", "succeeded"))
    assert [rank.state for rank in quick.ranks.all()] == ["succeeded"] * 2
    monkeypatch.setattr(carry, "NOTE_AFTER_S", 0.0)
    assert versions_of(ask()) > len(("claimed", "dispatched", "succeeded"))

"""No job is lost or done twice, whatever is killed. `tests.chaos.jobs` says how."""

from __future__ import annotations

import json

import pytest

from tests.chaos.jobs import DATABASES, Ran, Size, database_url, run

pytestmark = [pytest.mark.system, pytest.mark.process]
SLICE = Size(jobs=50, kills=7, flushalls=1, seed=3)
WHOLE = Size(jobs=1000, kills=56, flushalls=10, seed=1)


def check(ran: Ran, size: Size) -> None:
    """All that was to be done was done, and nothing came of it."""
    said = json.dumps(ran.report, indent=1)
    assert ran.verdict.is_clean, said
    assert ran.is_chain_whole, said
    assert sum(ran.report["kills"].values()) == size.kills
    assert len(ran.report["kills"]) == 7, said  # each part at least once
    assert ran.report["flushalls"] == size.flushalls
    assert ran.report["jobs"] + ran.report["requests_refused"] >= size.jobs
    assert ran.report["jobs_by_end"]["succeeded"] >= size.jobs // 4, said
    assert ran.report["effects"] >= size.jobs // 2, said


@pytest.mark.timeout(900)
def test_no_job_is_lost_or_done_twice_while_each_part_is_killed() -> None:
    check(run(SLICE, database="sqlite"), SLICE)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("database", DATABASES)
def test_no_job_is_lost_or_done_twice_in_a_thousand(database: str) -> None:
    with database_url(database) as url:
        check(run(WHOLE, database=database, database_url=url), WHOLE)

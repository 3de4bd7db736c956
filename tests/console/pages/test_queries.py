"""Lists cost the same number of queries for one row as for many."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from console.actors import Actor
from console.choices import JobState
from console.consumers.topics import topic_read
from console.models import Job, JobRankResult
from console.pages import fragments
from console.selectors.access import rights_of
from console.services.engines import engine_register
from tests.console.pages.conftest import rank_view


def queries(page, path: str) -> int:
    page.get(path)
    with CaptureQueriesContext(
        connection,
    ) as seen:
        assert page.get(path).status_code == 200
    return len(seen)


def end(job) -> None:
    Job.objects.filter(pk=job.pk).update(state=JobState.SUCCEEDED, phase=None)
    for rank in range(2):
        JobRankResult.objects.create(job=job, dp_rank=rank, state="succeeded")


WEIGHTS = ["/weights", "/engines/local/weights", "/weights/new?engine=local", "/uploads"]


BACKENDS = ["/backends", "/engines/local/backend", "/engines/local/backend/attach"]


@pytest.mark.parametrize(
    "path", ["/jobs", "/audit", "/engines/local", "/palette", *WEIGHTS, *BACKENDS]
)
def test_a_list_of_jobs_costs_the_same_for_many(page, ask, path):
    disk = {"kind": "update_weights_from_disk", "model_path": "/m/v2"}
    end(ask(**disk))
    few = queries(page, path)
    for _ in range(5):
        end(ask(**disk))
        end(ask())
    assert queries(page, path) == few <= 12


@pytest.mark.parametrize("path", ["/", "/weights", "/backends"])
def test_the_fleet_costs_the_same_for_many_engines(page, engine, ask, seen, path):
    ask()
    seen()
    few = queries(page, path)
    for n in range(5):
        engine_register(
            name=f"more-{n}",
            control_address="ipc:///nowhere/c",
            events_address="ipc:///nowhere/e",
            actor=Actor.system("test"),
        )
        seen(name=f"more-{n}")
    assert queries(page, path) == few <= 11


def test_a_job_page_costs_the_same_for_many_ranks_and_entries(page, ask):
    job = ask()
    few = queries(page, f"/jobs/{job.pk}")
    for rank in range(8):
        JobRankResult.objects.create(job=job, dp_rank=rank, state="waiting")
    assert queries(page, f"/jobs/{job.pk}") == few <= 10


def test_a_jobs_update_does_not_read_all_engines_each_time(user, engine, ask, seen, monkeypatch):
    """The banner of a mixed fleet is theirs; in readings of other topics it is a second old."""
    now = [100.0]
    monkeypatch.setattr(fragments, "monotonic_s", lambda: now[0])
    monkeypatch.setattr(fragments, "_mixed", {})
    fragments.register_all()
    job, rights = ask(), rights_of(user)
    seen(ranks=[rank_view(0), rank_view(1)])

    def banner(topic: str) -> str:
        return dict(topic_read(topic, rights).fragments)["mixed"]

    assert banner(f"job:{job.pk}") == ""
    seen(ranks=[rank_view(0), rank_view(1, version="v6")])
    now[0] += 0.9
    assert banner(f"job:{job.pk}") == ""
    now[0] += 0.1
    assert "2 versions" in banner(f"job:{job.pk}")
    seen(ranks=[rank_view(0), rank_view(1)])
    assert banner("fleet") == banner(f"job:{job.pk}") == ""


def test_jobs_are_paged_by_the_server(page, ask):
    for _ in range(52):
        end(ask())
    first = page.get("/jobs").content.decode()
    assert first.count('<tr id="job-') == 50
    older = first.split('rel="next"')[0].rsplit('href="', 1)[1].split('"')[0].replace("&amp;", "&")
    second = page.get(older).content.decode()
    assert second.count('<tr id="job-') == 2
    assert 'id="jobs_rows"' in first and 'id="jobs_rows"' not in second
    assert page.get("/jobs?state=open").content.decode().count('<tr id="job-') == 0
    assert (
        page.get("/jobs?engine=local&state=succeeded").content.decode().count('<tr id="job-') == 50
    )

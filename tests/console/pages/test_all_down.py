"""Redis, workers, relay, reconciler and engines are all dead: every page is there, and says so."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import httpx
import pytest
from django.urls import get_resolver, reverse

from tests.console.access.matrix import PAGES
from tests.fakes.engine import FakeEngine
from tests.fakes.stack import Stack
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.process

PARTS = ("valkey", "worker", "relay", "reconcile")
# These ask the engine itself, or another's part of a page; each tells that it got no answer.
NEEDS_AN_ENGINE = {"weights-return"}
NOTHING_DOWN = '<div id="parts" data-keyed></div>'
QUERY = dict.fromkeys(("flush", "flush-plan", "weights-plan", "weights-new"), "?engine={name}")
QUERY["weights-source"] = "?engine={name}&source=disk"


@pytest.fixture(scope="module")
def dead() -> Iterator[tuple[Stack, FakeEngine, dict[str, object]]]:
    """A console that has seen an engine and done a job, and then lost all but web and database."""
    stack = Stack()
    try:
        stack.up()
        with FakeEngine(stack.run_dir) as engine:
            stack.register(engine)
            done = stack.submit(engine)
            assert stack.ended(done)["state"] == "succeeded"
            failed = stack.submit(engine, mode="if_idle") if engine.busy(1) is None else ""
            stack.ended(failed)
            values = {
                "name": engine.name,
                "job_id": failed,
                "seq": 1,
                "username": "admin",
                "kind": "pause_generation",
            }
        for part in PARTS:
            stack.kill(part, signal.SIGKILL)
        yield stack, engine, values
    finally:
        stack.down()


@pytest.fixture(scope="module")
def person(dead: tuple[Stack, FakeEngine, dict[str, object]]) -> Iterator[httpx.Client]:
    """Logged in while all of it is dead."""
    with dead[0].login() as client:
        yield client


def page_patterns() -> dict[str, object]:
    found = {}
    for pattern in get_resolver().url_patterns:
        if not str(pattern.pattern).startswith(("api/", "django-admin/")):
            for one in getattr(pattern, "url_patterns", [pattern]):
                found[one.name] = one
    return found


@pytest.mark.parametrize("name", [name for method, name in PAGES if method == "GET"])
def test_every_page_is_there_and_says_what_is_down(dead, person, name):
    _, _, values = dead
    arguments = {key: values[key] for key in page_patterns()[name].pattern.converters}
    answer = person.get(reverse(name, kwargs=arguments) + QUERY.get(name, "").format(**values))
    if name in NEEDS_AN_ENGINE:
        assert answer.status_code in (404, 409), answer.text
    else:
        assert answer.status_code == 200, answer.text
    if "<html" in answer.text:
        assert "Redis does not answer" in answer.text


def test_what_the_database_has_is_shown_and_nothing_is_guessed(dead, person):
    _, engine, values = dead
    assert "not idle" in person.get(f"/jobs/{values['job_id']}").text
    fleet = person.get("/").text
    assert engine.name in fleet and "unreachable" in fleet
    assert person.get("/healthz").json()["parts"] == {
        "database": True, "redis": False, "worker": False, "relay": False, "reconciler": False,
    }  # fmt: skip


def test_a_job_that_is_asked_for_is_kept_and_done_when_all_is_back(dead, person):
    stack, engine, _ = dead
    job_id = stack.submit(engine, timeout_s=600)
    assert stack.job(job_id)["state"] == "accepted"
    assert "queued" in person.get(f"/jobs/{job_id}").text
    for part in PARTS:
        stack.start(part)
    with engine:
        engine.idle()
        assert stack.ended(job_id)["state"] == "succeeded"
        assert engine.journal.effects.count(job_id) == 1
        wait_until(lambda: NOTHING_DOWN in person.get("/").text)
    for part in PARTS:
        stack.kill(part, signal.SIGKILL)

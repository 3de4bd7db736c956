"""Every page in a real browser, two sizes, two themes: axe, policy, console, sideways scroll."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser

from tests.console.pages.chromium import SIZES, Seat, browser, seat
from tests.fakes.engine import FakeEngine
from tests.fakes.stack import Stack, wait_until

pytestmark = pytest.mark.browser

LONG_REASON = "Clear the prompts of the leaked test set <before> " + "averyverylongword" * 8


@pytest.fixture(scope="module")
def states(stack: Stack) -> Iterator[dict[str, str]]:
    """Engines and jobs in every state that a page has; name → path."""
    names = ("look-idle", "look-waiting", "look-partial", "look-lost", "look-busy")
    engines = {name: FakeEngine(stack.run_dir, name=name).start() for name in names}
    try:
        for engine in engines.values():
            stack.register(engine)
        idle, waiting, partial, lost, busy = engines.values()
        paths = {f"engine {name}": f"/engines/{name}" for name in names}
        jobs = {"succeeded": stack.submit(idle, timeout_s=30)}
        waiting.busy(3)
        jobs["waiting"] = stack.submit(waiting, timeout_s=600)
        stack.until(jobs["waiting"], phase="waiting for idle")
        jobs["blocked"] = stack.ask(waiting, on_conflict="queue", timeout_s=30).json()["id"]
        partial.fail_ranks = {1}
        jobs["partial"] = stack.submit(partial, timeout_s=30)
        busy.busy(2)
        jobs["failed"] = stack.submit(busy, timeout_s=0)
        stack.job(jobs["failed"], wait_s=10)
        jobs["expired"] = stack.submit(busy, timeout_s=0.5)
        stack.job(jobs["expired"], wait_s=10)
        jobs["cancelled"] = stack.submit(busy, timeout_s=60)
        stack.until(jobs["cancelled"], phase="waiting for idle")
        stack.request("POST", f"/jobs/{jobs['cancelled']}/cancel")
        lost.busy(1)
        jobs["unknown"] = stack.submit(lost, timeout_s=60)
        stack.until(jobs["unknown"], phase="waiting for idle")
        lost.stop()
        stack.until(jobs["unknown"], timeout_s=30, phase="unknown")
        wait_until(lambda: not stack.engine(lost.name)["online"], 10)
        stack.sql("UPDATE console_job SET reason = ?", LONG_REASON)
        paths |= {f"job {name}": f"/jobs/{job_id}" for name, job_id in jobs.items()}
        yield {
            **paths,
            "fleet": "/",
            "flush": "/flush?engine=look-busy",
            "flush refused": "/flush?engine=look-waiting",
            "jobs": "/jobs",
            "jobs filtered to nothing": "/jobs?engine=look-idle&state=expired",
            "audit": "/audit",
            "audit of a job": f"/audit?job={jobs['partial']}",
            "audit entry": "/audit/3",
            "not found": "/nowhere",
        }
        stack.request("POST", f"/jobs/{jobs['waiting']}/cancel")
    finally:
        for engine in engines.values():
            engine.stop()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture(scope="module")
def seats(stack: Stack, chromium: Browser) -> list[Seat]:
    """A wide and a narrow tab, logged in."""
    return [seat(chromium, stack.url, size).log_in(stack.password) for size in SIZES]


PAGES = [
    "fleet",
    *(f"engine look-{name}" for name in ("idle", "waiting", "partial", "lost", "busy")),
    "flush",
    "flush refused",
    "jobs",
    "jobs filtered to nothing",
    *(
        f"job {name}"
        for name in (
            *("succeeded", "waiting", "blocked", "partial", "failed"),
            *("expired", "cancelled", "unknown"),
        )
    ),
    "audit",
    "audit of a job",
    "audit entry",
    "not found",
]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_clean(states, seats, name):
    for one in seats:
        one.goto(states[name])
        one.page.wait_for_timeout(100)  # the first reading of the socket is shown
        assert one.faults(status=404 if name == "not found" else 200) == []


def test_what_opens_on_a_page_is_clean(states, seats):
    for one in seats:
        one.goto(states["job waiting"])
        one.page.click("[data-dialog=force]")
        one.page.locator("#force [data-first]:focus").wait_for()
        assert one.faults() == []
        one.page.keyboard.press("Escape")
        one.page.locator("[data-dialog=force]:focus").wait_for()
        one.page.click("[data-palette]")
        one.page.locator("#pal-list [aria-selected=true]").wait_for()
        assert one.faults() == []
        one.page.keyboard.press("Escape")
        one.page.keyboard.press("?")
        one.page.locator("#keys[open]").wait_for()
        assert one.faults() == []
        one.page.keyboard.press("Escape")
        one.page.click(".user-menu summary")
        assert one.faults() == []


def test_a_refused_form_is_clean_and_keeps_what_was_typed(states, seats):
    for one in seats:
        one.goto(states["flush"])
        one.page.fill("#f-to", "soon")
        one.page.fill("#f-why", "why")
        one.page.fill("#f-name", "look-busy")
        one.page.click("#f-go")
        one.page.locator("#f-to-err").wait_for()
        assert one.page.input_value("#f-to") == "soon"
        assert one.faults(status=422) == []


def test_a_console_without_news_or_engines_is_clean(chromium):
    quiet = Stack()  # web only: no relay has ever seen an engine
    try:
        quiet.up("valkey", "web")
        wait_until(lambda: is_up(quiet), 20)
        for size in SIZES:
            one = seat(chromium, quiet.url, size).log_in(quiet.password)
            for path in ("/engines/local", "/flush", "/jobs", "/"):
                assert one.goto(path).faults() == [], path
        quiet.sql("DELETE FROM console_engine")
        for size in SIZES:
            one = seat(chromium, quiet.url, size).log_in(quiet.password).goto("/")
            assert one.page.locator("#fleet-empty").is_visible()
            assert one.faults() == []
    finally:
        quiet.down()


def is_up(stack: Stack) -> bool:
    try:
        return stack.health()["live"]
    except httpx.HTTPError:
        return False


def test_the_log_in_is_clean_also_when_it_refuses(stack, chromium):
    for size in SIZES:
        one = seat(chromium, stack.url, size).goto("/login", is_live=False)
        assert one.faults() == []
        one.page.fill("#u", "admin")
        one.page.fill("#p", "wrong")
        one.page.click("button[type=submit]")
        one.page.locator("#login-err").wait_for()
        assert one.faults() == []

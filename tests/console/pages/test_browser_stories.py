"""What people do when a job does not go as asked: it expires, is cancelled, repaired and retried,
and is looked for in the audit log. `QUIESCE_SCREENSHOTS=1` also writes docs/screenshots/."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.pages.chromium import Seat, until
from tests.fakes.engine import FakeEngine
from tests.fakes.stack import Stack
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.browser

SHOTS = Path(__file__).parents[3] / "docs" / "screenshots"


@pytest.fixture
def engine(stack: Stack) -> Iterator[FakeEngine]:
    with FakeEngine(stack.run_dir) as made:
        stack.register(made)
        yield made


def shot(tab: Seat, name: str) -> None:
    if os.environ.get("QUIESCE_SCREENSHOTS") == "1":
        tab.page.screenshot(path=SHOTS / f"{name}.png", full_page=True)


def ask_flush(tab: Seat, engine: FakeEngine, seconds: str) -> str:
    """By the form; the new job's path."""
    tab.goto(f"/flush?engine={engine.name}")
    tab.page.fill("#f-to", seconds)
    tab.page.fill("#f-why", "a story")
    tab.page.fill("#f-name", engine.name)
    tab.page.click("#f-go")
    tab.page.wait_for_url("**/jobs/*")
    return tab.page.url.removeprefix(tab.url)


def test_a_flush_that_expires_says_that_nothing_changed_and_is_asked_again(tab, engine):
    engine.busy(2)
    first = ask_flush(tab, engine, "1")
    until(lambda: tab.text("#job-st") == "expired", tab.page)
    assert "nothing was flushed" in tab.text("#next").lower()
    assert tab.text("#sc-0") == "ok 0"
    shot(tab, "story-expired")
    assert tab.faults() == []
    engine.idle()
    tab.page.click("#undo a:has-text('Retry')")
    tab.page.locator("h1:has-text('Retry')").wait_for()
    tab.page.fill("#r-name", engine.name)
    tab.page.click("button:has-text('again on')")
    tab.page.wait_for_url("**/jobs/*")
    until(lambda: tab.text("#job-st") == "succeeded", tab.page)
    assert first.rpartition("/")[2] in tab.page.content()
    tab.goto(first)
    assert "retry" in tab.text("main").lower()


def test_a_flush_is_cancelled_from_the_pending_list(tab, engine):
    engine.busy(1)
    path = ask_flush(tab, engine, "600")
    job_id = path.rpartition("/")[2]
    tab.goto("/pending")
    row = tab.page.locator(f"#p-{job_id}")
    row.wait_for()
    until(lambda: "waiting for idle" in row.inner_text(), tab.page)
    before = tab.text(f"#p-{job_id}-left")
    until(lambda: tab.text(f"#p-{job_id}-left") != before, tab.page)
    shot(tab, "story-pending")
    row.locator("button:has-text('Extend')").click()
    until(lambda: tab.text(f"#p-{job_id}-left").startswith("10:"), tab.page)
    row.locator("button:has-text('Cancel')").click()
    until(lambda: tab.page.locator(f"#p-{job_id}").count() == 0, tab.page)
    tab.goto(path)
    assert tab.text("#job-st") == "cancelled"
    assert tab.faults() == []


def test_a_fenced_rank_is_repaired_and_the_update_retried(tab, stack, engine):
    engine.fail_ranks = {1}
    update = {"kind": "update_weights_from_disk", "model_path": "/srv/models/v2"}
    partial = stack.ended(stack.submit(engine, **update, timeout_s=20))
    assert partial["state"] == "partial"
    wait_until(lambda: stack.engine(engine.name)["ranks"][1]["condition"] == "fenced")
    tab.goto(f"/engines/{engine.name}/weights")
    assert "Rank 1 in quarantine" in tab.text("main")
    shot(tab, "story-quarantine")
    engine.fail_ranks = set()
    tab.page.click("a:has-text('Repair')")
    tab.page.fill("#o-why", "bring rank 1 back")
    tab.page.click("#o-go")
    tab.page.wait_for_url("**/jobs/*")
    until(lambda: tab.text("#job-st") == "succeeded", tab.page)
    wait_until(lambda: stack.engine(engine.name)["ranks"][1]["condition"] == "")
    tab.goto(f"/jobs/{partial['id']}/retry")
    tab.page.fill("#r-name", engine.name)
    tab.page.click("button:has-text('again on')")
    tab.page.wait_for_url("**/jobs/*")
    until(lambda: tab.text("#job-st") == "succeeded", tab.page)
    assert tab.text("#sc-0") == "ok 2"
    assert tab.faults() == []


def test_an_act_is_found_in_the_audit_log_and_the_log_is_verified(tab, stack, engine):
    job = stack.ended(stack.submit(engine, timeout_s=30))
    tab.goto("/audit")
    tab.page.fill("[name=q]", f"job:{job['id']}")
    tab.page.press("[name=q]", "Enter")
    tab.page.wait_for_url("**q=job*")
    rows = tab.page.locator("main tbody tr")
    until(lambda: rows.count() >= 3, tab.page)
    assert "succeeded" in rows.first.inner_text()
    shot(tab, "story-audit")
    rows.first.locator("a").first.click()
    tab.page.locator("h1").wait_for()
    assert "Stored bytes" in tab.page.content()
    tab.goto("/audit/verify")
    tab.page.click("button[type=submit]:has-text('Verify all')")
    until(lambda: "As it was written" in tab.text("main"), tab.page)
    shot(tab, "story-verified")
    assert tab.faults() == []

"""Backends in a real browser: the form and its plan, what it sends, the job, the undo."""

from __future__ import annotations

import contextlib
import re

import pytest
from playwright.sync_api import Browser, Error

from engine.protocol import Breaker, KeepSecrets
from tests.console.pages.chromium import Seat, seat, until
from tests.fakes.stack import Stack

pytestmark = pytest.mark.browser

SECRET = "browser-canary-77d1"


@pytest.fixture
def one(stack: Stack, chromium: Browser) -> Seat:
    return seat(chromium, stack.url).log_in(stack.password)


def succeed(one: Seat) -> None:
    one.page.wait_for_url(re.compile("/jobs/"))
    until(lambda: one.text("#job-st") == "succeeded", one.page)


def test_attach_switch_and_undo_with_a_secret_that_is_sent_once(stack, stack_engine, one):
    posted: list[tuple[str, str]] = []
    one.page.on("request", lambda r: posted.append((r.url + r.method, r.post_data or "")))
    path = f"/engines/{stack_engine.name}/backend"
    one.goto(path)
    one.page.click("text=Attach a backend")
    one.page.wait_for_url(re.compile("/backend/attach"))
    one.page.check("[name=backend][value=valkey]")
    one.page.locator("#s-url").wait_for()
    until(lambda: "url: is required" in one.text("#plan"), one.page)
    one.page.fill("#s-url", "valkey://kv.internal:6379/0")
    one.page.fill("#s-password", SECRET)
    until(lambda: "(secret, told to the engine only)" in one.text("#side"), one.page)
    one.page.click("#ovr-add")
    one.page.select_option("#ovr [name=o-rank]", "1")
    one.page.select_option("#ovr [name=o-setting]", "password")
    assert one.page.get_attribute("#ovr [name=o-value]", "type") == "password"
    one.page.select_option("#ovr [name=o-setting]", "prefix")
    assert one.page.get_attribute("#ovr [name=o-value]", "type") == "text"
    one.page.fill("#ovr [name=o-value]", "other")
    one.page.click("[data-cfg=cfg-1]")
    assert '"prefix": "other"' in one.text("#cfg-1")
    one.page.evaluate("scrollTo(0, 0)")  # else the header lies over links, which are then small
    assert one.faults() == []
    assert SECRET not in one.page.content() + str(posted)
    one.page.fill("#a-why", "a store for the fleet")
    until(lambda: one.page.get_attribute("#a-go", "aria-disabled") is None, one.page)
    one.page.click("#a-go")
    succeed(one)
    assert [url for url, body in posted if SECRET in body + url] == [
        f"{stack.url}{path}/attachPOST"
    ]
    assert SECRET not in one.page.content()
    (kept,) = [got.command.values for got in stack_engine.commands(KeepSecrets)]
    assert kept == {"password": SECRET}
    one.page.click(f"a[href='{path}']")
    one.page.wait_for_url(re.compile("/backend$"))
    until(lambda: "closed" in one.text("#r1-br"), one.page)
    stack_engine.storage.breakers = {1: Breaker.OPEN}
    until(lambda: "open" in one.text("#r1-br"), one.page)
    one.page.click("text=Switch…")
    one.page.wait_for_url(re.compile("/backend/attach"))
    assert "Detach valkey" in one.text("#side")
    one.page.check("[name=backend][value=file]")
    one.page.locator("#s-max_size").wait_for()
    one.page.fill("#a-why", "the store is full")
    until(lambda: one.page.get_attribute("#a-go", "aria-disabled") is None, one.page)
    one.page.click("#a-go")
    succeed(one)
    until(lambda: "in place of valkey" in one.text("#next"), one.page)
    one.page.click("#undo a")
    one.page.wait_for_url(re.compile("undo="))
    assert one.page.locator("[type=password]").count() == 0
    until(lambda: one.page.get_attribute("#a-go", "aria-disabled") is None, one.page)
    one.page.click("#a-go")
    succeed(one)
    assert stack_engine.storage.attached.backend == "valkey"
    assert len(stack_engine.commands(KeepSecrets)) == 1
    assert one.faults() == []


def test_detach_is_gentle_until_it_is_forced(stack, stack_engine, one):
    stack.ended(stack.submit(stack_engine, kind="attach_storage_backend", backend="file"))
    stack_engine.busy(1)
    one.goto(f"/engines/{stack_engine.name}/do/detach_storage_backend")
    assert "Deletes nothing" in one.text("#plan")
    assert not one.page.is_visible("#o-name")
    one.page.check("[name=force]")
    until(lambda: "it waits for nothing" in one.text("#plan"), one.page)
    assert one.page.is_visible("#o-name")
    assert not one.page.is_visible("#o-to")
    assert '"force":true' in one.text("#code")
    one.page.fill("#o-why", "the store hangs")
    assert "Type the engine" in one.text("#o-state")
    one.page.fill("#o-name", stack_engine.name)
    assert one.faults() == []
    one.page.click("#o-go")
    succeed(one)
    assert stack_engine.storage.attached is None
    assert "stays in the store; clear would delete it" in one.text("#next")


def test_of_two_plans_on_their_way_the_newer_one_is_shown(stack, stack_engine, one):
    stack.ended(stack.submit(stack_engine, kind="attach_storage_backend", backend="file"))
    asked = []
    one.page.route("**/do/detach_storage_backend/plan?*", lambda route: asked.append(route))
    one.goto(f"/engines/{stack_engine.name}/do/detach_storage_backend")
    stack_engine.busy(1)
    until(lambda: asked, one.page)  # the engine is not as planned any more
    one.page.check("[name=force]")
    until(lambda: len(asked) > 1, one.page)
    for route in asked:
        with contextlib.suppress(Error):  # given up by the page
            route.continue_()
        one.page.wait_for_timeout(500)
    until(lambda: "it waits for nothing" in one.text("#plan"), one.page)


def test_the_charts_of_a_backend_fill_while_the_page_is_open(stack, stack_engine, one):
    stack.ended(stack.submit(stack_engine, kind="attach_storage_backend", backend="file"))
    one.goto(f"/engines/{stack_engine.name}/backend")
    table = "[data-twin=c-mb]"
    one.page.wait_for_timeout(2500)
    one.page.click(f"{table} summary")
    until(lambda: "342" in one.text(table), one.page)
    assert one.faults() == []

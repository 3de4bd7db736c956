"""Many live sockets at once: what one of them does or suffers is its own."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid

import pytest

from tests.console.live_browser import Browser, closed_with, hint
from tests.fakes.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cookie(stack):
    with stack.login() as client:
        yield f"quiesce_sid={client.cookies['quiesce_sid']}"


def test_twenty_sockets_outlive_redis_and_hear_hints_again(stack, stack_engine, cookie):
    """They share one subscription a topic: it is made anew for all, and one who leaves ends
    nobody's."""
    stack_engine.busy(1)
    job_id = stack.submit(stack_engine, timeout_s=600)
    stack.until(job_id, phase="waiting for idle")
    topic = f"job:{job_id}"
    with contextlib.ExitStack() as open_sockets:
        browsers = [open_sockets.enter_context(Browser(stack, cookie)) for _ in range(20)]
        for browser in browsers:
            browser.subscribe(topic)
            assert browser.next()["data"]["id"] == job_id
        stack.kill("valkey")
        for browser in browsers[:5]:
            browser.socket.close()
        stack.start("valkey")
        wait_until(lambda: stack.health()["status"] == "ok")
        # Somebody new, whose subscription is known to be there, hears of the same hint.
        with Browser(stack, cookie) as late:
            late.subscribe(topic)
            assert late.next()["data"]["id"] == job_id
            stack_engine.idle()
            for browser in (late, *browsers[5:]):
                assert browser.until_ended()[-1]["data"]["state"] == "succeeded"


def test_a_flood_on_one_topic_leaves_the_others_and_requests_alone(stack, stack_engine, cookie):
    """Hints by the thousand of one topic: what is asked for elsewhere is still answered, and the
    flooded topic ends with its truth."""
    stack_engine.busy(1)
    job_id = stack.submit(stack_engine, timeout_s=600)
    stop = threading.Event()

    def flood():
        hints, one = stack.redis(), hint(f"engine:{stack_engine.name}")
        while not stop.is_set():
            hints.publish(*one)

    flooding = threading.Thread(target=flood, daemon=True)
    with Browser(stack, cookie) as flooded, Browser(stack, cookie) as other:
        flooded.subscribe(f"engine:{stack_engine.name}")
        flooded.next()
        flooding.start()
        try:
            other.subscribe(f"job:{job_id}")
            stack.until(job_id, phase="waiting for idle")
            stack_engine.idle()
            assert other.until_ended()[-1]["data"]["state"] == "succeeded"
            while not (flooded.next()["data"]["idle"]):
                pass
        finally:
            stop.set()
            flooding.join(PATIENCE_S)


def test_others_with_the_same_rights_see_the_same_and_one_whose_role_goes_sees_no_more(
    stack, stack_engine, cookie
):
    """Ten share one reading while the engine changes all the time; one of them loses their role."""
    name, password = f"watcher{uuid.uuid4().hex[:6]}", "a-long-enough-password-7"
    stack.manage("create_user", name, "--password-stdin", said=password)
    topic = f"engine:{stack_engine.name}"
    stop = threading.Event()

    def change():
        while not stop.is_set():
            stack_engine.busy(3)
            stack_engine.idle()
            time.sleep(0.05)

    changing = threading.Thread(target=change, daemon=True)
    with contextlib.ExitStack() as all_of_them:
        client = all_of_them.enter_context(stack.login(name, password))
        theirs = f"quiesce_sid={client.cookies['quiesce_sid']}"
        watchers = [all_of_them.enter_context(Browser(stack, theirs)) for _ in range(5)]
        others = [all_of_them.enter_context(Browser(stack, cookie)) for _ in range(5)]
        for browser in (*watchers, *others):
            browser.subscribe(topic)
            assert browser.next()["data"]["name"] == stack_engine.name
        changing.start()
        try:
            stack.manage("take_role", name, "viewer")
            for browser in watchers:
                assert closed_with(browser.socket) == 4403
            for browser in others:
                assert browser.next()["topic"] == topic
        finally:
            stop.set()
            changing.join(PATIENCE_S)

"""The live socket against the real web process: who may open it, and that nothing is missed."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests.console.live_browser import ENDED, Browser, closed_with, hint
from tests.fakes.engine import FakeEngine
from tests.fakes.stack import free_port
from tests.fakes.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cookie(stack):
    with stack.login() as client:
        yield f"quiesce_sid={client.cookies['quiesce_sid']}"


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("foreign", "https://evil.example"),
        ("null", "null"),
        ("another port", "http://127.0.0.1:1"),
        ("another host", "http://localhost.evil.example"),
        ("userinfo", "http://x@127.0.0.1"),
        ("missing", ""),
    ],
)
def test_s05_a_foreign_origin_is_refused_at_the_handshake(stack, cookie, name, origin):  # S05
    with pytest.raises(InvalidStatus) as refused:
        connect(
            stack.url.replace("http", "ws") + "/ws/live/",
            origin=origin or None,
            additional_headers={"Cookie": cookie},
            proxy=None,
        )
    assert refused.value.response.status_code == 403


def test_s05_our_own_origin_in_upper_case_is_accepted(stack, cookie):  # S05
    upper = f"HTTP://LOCALHOST:{stack.port}"
    with Browser(stack, cookie, origin=upper, host="localhost") as browser:
        browser.say(type="ping")
        assert browser.next()["type"] == "pong"


@pytest.mark.parametrize(
    ("path", "origin"),
    [("/ws/live", None), ("/", None), ("/ws/live/", "http://["), ("/ws/live/", "http://[::1")],
)
def test_an_unknown_path_and_a_broken_origin_are_refused_without_a_traceback(stack, path, origin):
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{stack.port}{path}", origin=origin or stack.url, proxy=None)
    assert refused.value.response.status_code == 403


def test_without_a_log_in_the_socket_closes_with_4401_and_tells_nothing(stack):
    browser = Browser(stack, "")
    assert closed_with(browser.socket) == 4401


def test_a_log_out_closes_the_sockets_of_that_session(stack):
    with (
        stack.login() as client,
        Browser(stack, f"quiesce_sid={client.cookies['quiesce_sid']}") as browser,
    ):
        browser.subscribe("fleet")
        assert browser.next()["type"] == "update"
        client.post(
            "/logout",
            data={"csrfmiddlewaretoken": client.csrf},
            headers={"Origin": stack.url},
        )
        assert closed_with(browser.socket) == 4401


@pytest.mark.parametrize(
    ("command", "code"),
    [("give_role watcher auditor", 4403), ("take_role watcher viewer", 4403),
     ("set_user watcher --disable", 4401), ("reset_password watcher --password-stdin", 4401)],
)  # fmt: skip
def test_rights_that_change_close_the_sockets_of_that_person_only(stack, cookie, command, code):
    """By the hint that is sent after the commit; 4403 has no other cause."""
    name = f"watcher{uuid.uuid4().hex[:6]}"
    password = "a-long-enough-password-7"
    stack.manage("create_user", name, "--password-stdin", said=password)
    with (
        stack.login(name, password) as client,
        Browser(stack, f"quiesce_sid={client.cookies['quiesce_sid']}") as browser,
        Browser(stack, cookie) as other,
    ):
        browser.subscribe("fleet")
        assert browser.next()["type"] == "update"
        stack.manage(*command.replace("watcher", name, 1).split(), said="another-long-pass-9")
        assert closed_with(browser.socket) == code
        other.say(type="ping")
        assert other.next()["type"] in ("pong", "update")


def test_a_command_finds_the_broker_of_its_folder_and_says_when_none_answers(
    stack, cookie, monkeypatch
):
    """As beside a running bin/run, which gives REDIS_URL to its own children only."""
    url = Path(stack.dir) / "valkey" / "url"
    url.parent.mkdir()
    url.touch(0o600)
    name = f"watcher{uuid.uuid4().hex[:6]}"
    stack.manage("create_user", name, "--password-stdin", said="a-long-enough-password-7")
    try:
        with (
            stack.login(name, "a-long-enough-password-7") as client,
            Browser(stack, f"quiesce_sid={client.cookies['quiesce_sid']}") as browser,
        ):
            browser.subscribe("fleet")
            url.write_text(stack.env["REDIS_URL"])
            monkeypatch.delitem(stack.env, "REDIS_URL")
            done = stack.manage("give_role", name, "auditor")
            assert closed_with(browser.socket) == 4403
            assert "Redis" not in done.stderr
            # A bin/run that was killed leaves its file behind.
            url.write_text(f"redis://:hush@127.0.0.1:{free_port()}/0")
            done = stack.manage("take_role", name, "auditor")
            said = done.stderr.strip().splitlines()
            assert len(said) == 1 and "no Redis answers at 127.0.0.1:" in said[0], done.stderr
            assert "hush" not in done.stderr and "hints are lost" not in done.stdout
    finally:
        url.unlink()
        url.parent.rmdir()


def test_a_job_that_ended_leaves_the_pending_ones_though_it_was_the_newest(
    stack, stack_engine, cookie
):
    with FakeEngine(stack.run_dir) as other:
        stack.register(other)
        other.busy(1)
        older = stack.submit(other, timeout_s=600)
        stack_engine.busy(1)
        newer = stack.submit(stack_engine, timeout_s=600)
        with Browser(stack, cookie) as browser:
            browser.subscribe("pending")

            def seen():
                message = browser.next()
                items = message.get("data", {}).get("items", []) if message else []
                return {item["id"] for item in items} if message["type"] == "update" else None

            while {older, newer} - (seen() or set()):
                continue
            stack.request("POST", f"/jobs/{newer}/cancel")
            while newer in (found := seen() or {newer}):
                continue
            assert older in found
        stack.request("POST", f"/jobs/{older}/cancel")


def test_what_a_socket_was_refused_is_on_record(stack, cookie):
    since = stack.request("GET", "/audit/head").json()["seq"]
    asked = f"job:00000000-0000-4000-8000-{uuid.uuid4().hex[:12]}"
    with Browser(stack, cookie) as browser:
        browser.subscribe(asked)
        assert browser.next()["type"] == "gone"
    with pytest.raises(InvalidStatus):
        Browser(stack, cookie, origin=f"https://{uuid.uuid4().hex}.example").__enter__()

    def noted():
        items = stack.request("GET", "/audit?action=request.denied").json()["items"]
        return {one["body"]["object"]: one for one in items if one["seq"] > since}

    wait_until(lambda: f"socket {asked}" in noted())
    entry = noted()[f"socket {asked}"]
    assert (entry["actor"], entry["body"]["code"]) == ("admin", "not_found")


@pytest.mark.parametrize(
    "text", ["{", '{"type":"nonsense"}', '{"type":"subscribe","topics":["job:1"]}', "[" * 5000]
)
def test_nonsense_closes_with_4400(stack, cookie, text):
    with Browser(stack, cookie) as browser:
        browser.socket.send(text)
        assert closed_with(browser.socket) == 4400


def test_one_that_asks_without_end_is_closed_and_another_is_not(stack, stack_engine, cookie):
    topic = f"engine:{stack_engine.name}"
    with Browser(stack, cookie) as flooding, Browser(stack, cookie) as other:
        other.subscribe(topic)
        other.next()
        # Faster than any console could read: the socket is closed while it is still being asked.
        with contextlib.suppress(ConnectionClosed):
            for _ in range(20_000):
                flooding.say(type="subscribe", topics=[topic])
        assert closed_with(flooding.socket) == 4400
        other.say(type="ping")
        while other.next()["type"] != "pong":
            continue  # an update of the engine


def test_an_unknown_job_is_told_as_gone(stack, cookie):
    with Browser(stack, cookie) as browser:
        browser.subscribe("job:00000000-0000-4000-8000-000000000000")
        assert browser.next()["type"] == "gone"


def test_a_job_is_told_as_the_api_tells_it_step_by_step(stack, stack_engine, cookie):
    stack_engine.busy(1)
    job_id = stack.submit(stack_engine, timeout_s=300)
    with Browser(stack, cookie) as browser:
        browser.subscribe(f"job:{job_id}")
        assert browser.next()["data"]["id"] == job_id
        stack.until(job_id, phase="waiting for idle")
        stack_engine.idle()
        updates = browser.until_ended()
    versions = [update["version"] for update in updates]
    assert versions == sorted(set(versions))
    assert updates[-1]["data"] == stack.job(job_id)


def test_the_engine_topic_follows_idle_and_busy_and_the_pending_operation(
    stack, stack_engine, cookie
):
    with Browser(stack, cookie) as browser:
        browser.subscribe(f"engine:{stack_engine.name}")
        assert browser.next()["data"]["idle"] is True
        stack_engine.busy(2)
        while (message := browser.next())["data"]["idle"]:
            pass
        assert message["data"]["places"]["running"] == 4  # two on each of two ranks
        job_id = stack.submit(stack_engine, timeout_s=300)
        while not (pending := browser.next()["data"]["pending_operation"]):
            pass
        assert (pending["job_id"], pending["mode"]) == (job_id, "wait")
        stack_engine.stop()
        while browser.next()["data"]["online"]:
            pass


def test_l01_a_slow_reader_and_churn_end_with_the_true_state_of_a_flood(
    stack, stack_engine, cookie
):  # L01
    """500 changes; one reader reads only afterwards, others come and go."""
    stack_engine.busy(1)
    job_id = stack.submit(stack_engine, timeout_s=300)
    topic = f"job:{job_id}"
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            with Browser(stack, cookie) as browser:
                browser.subscribe(topic)
                browser.next()

    churners = [threading.Thread(target=churn, daemon=True) for _ in range(3)]
    with Browser(stack, cookie) as slow, Browser(stack, cookie) as quick:
        for thread in churners:
            thread.start()
        try:
            slow.subscribe(topic)
            quick.subscribe(topic, "jobs", "fleet", f"engine:{stack_engine.name}")
            stack.until(job_id, phase="waiting for idle")
            hints = stack.redis()
            flood = hint(topic)
            for _ in range(500):
                hints.publish(*flood)
                time.sleep(0.002)
            stack_engine.idle()
            assert stack.ended(job_id)["state"] == "succeeded"
            for browser in (slow, quick):
                states = []
                while not states or states[-1][1] not in ENDED:
                    message = browser.next()
                    if message.get("topic") == topic:
                        states.append((message["version"], message["data"]["state"]))
                versions = [version for version, _ in states]
                assert versions == sorted(set(versions)), "no repeat, nothing backwards"
                assert len(states) < 50, "changes were put together"
        finally:
            stop.set()
            for thread in churners:
                thread.join(PATIENCE_S)


def test_l04_a_subscription_at_any_moment_of_a_job_ends_with_its_truth(stack, cookie):  # L04
    with FakeEngine(stack.run_dir) as engine, Browser(stack, cookie) as browser:
        stack.register(engine)
        for number in range(40):
            job_id = stack.submit(engine, timeout_s=300, on_conflict="queue")
            time.sleep(0.003 * (number % 12))  # (a) before, (b) between two states
            browser.subscribe(f"job:{job_id}")
            updates = browser.until_ended()
            assert updates[-1]["data"]["state"] == "succeeded"
            versions = [update["version"] for update in updates]
            assert versions == sorted(set(versions))
            browser.say(type="unsubscribe", topics=[f"job:{job_id}"])
        # (c) after the end, and (d) on a new connection
        with Browser(stack, cookie) as late:
            late.subscribe(f"job:{job_id}")
            assert late.until_ended()[0]["data"]["state"] == "succeeded"


def test_l04_a_socket_that_was_away_shows_the_end_at_once(stack, stack_engine, cookie):  # L04
    stack_engine.busy(1)
    job_id = stack.submit(stack_engine, timeout_s=300)
    with Browser(stack, cookie) as browser:
        browser.subscribe(f"job:{job_id}")
        browser.next()
    stack_engine.idle()
    stack.until(job_id, state="succeeded")  # the worker may still be reconnecting
    with Browser(stack, cookie) as browser:
        browser.subscribe(f"job:{job_id}")
        assert browser.next()["data"]["state"] == "succeeded"


def test_hints_lost_with_redis_are_made_up_for(stack, stack_engine, cookie):  # L01
    stack_engine.busy(1)
    job_id = stack.submit(stack_engine, timeout_s=300)
    stack.until(job_id, phase="waiting for idle")
    with Browser(stack, cookie) as browser:
        browser.subscribe(f"job:{job_id}")
        browser.next()
        stack.kill("valkey")
        stack_engine.idle()
        assert stack.ended(job_id)["state"] == "succeeded"
        assert browser.until_ended()[-1]["data"]["state"] == "succeeded"
        stack.start("valkey")
    # Celery tries again after 2, 4, 6, … s; the outage was a few.
    wait_until(lambda: stack.health()["status"] == "ok")

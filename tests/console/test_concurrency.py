"""Many at once: double clicks, contended writes, forks, a stopped relay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from engine.protocol import Hello
from tests.fakes import plain_http
from tests.fakes.engine import FakeEngine
from tests.fakes.stack import ROOT
from tests.fakes.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.process


def test_j07_twenty_posts_with_one_key_are_one_job_and_one_call(stack, stack_engine):  # J07
    stack_engine.busy(1)
    body = {"engine": stack_engine.name, "kind": "flush_cache", "params": {"timeout_s": 20}}

    def post(key):
        return stack.request("POST", "/jobs", json=body, headers={"Idempotency-Key": key})

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(post, ["the-key"] * 20))
    answers.append(post("the-key"))
    assert sorted({answer.status_code for answer in answers}) == [200, 202]
    assert [answer.status_code for answer in answers].count(202) == 1
    (job_id,) = {answer.json()["id"] for answer in answers}
    other = post("another-key")
    assert (other.status_code, other.json()["holder"]) == (409, job_id)
    stack_engine.idle()
    assert stack.ended(job_id)["state"] == "succeeded"
    assert len(stack_engine.submits()) == 1
    assert post("the-key").json()["id"] == job_id


def test_f02_of_twenty_different_posts_one_is_accepted(stack, stack_engine):
    stack_engine.busy(1)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: stack.ask(stack_engine, timeout_s=300), range(20)))
    codes = [answer.status_code for answer in answers]
    assert sorted(codes) == [202] + [409] * 19
    first = next(answer.json()["id"] for answer in answers if answer.status_code == 202)
    assert {one.json()["holder"] for one in answers if one.status_code == 409} == {first}
    stack_engine.idle()
    assert stack.ended(first)["state"] == "succeeded"


class Load:
    """Writers that accept and cancel, readers that read, until a time; what they met."""

    def __init__(self, stack, seconds):
        self.stack = stack
        self.ends = time.monotonic() + seconds
        self.accepted = []
        self.faults = []
        self.reads = 0

    def write(self, engine):
        while time.monotonic() < self.ends or len(self.accepted) < 6:
            answer = self.stack.ask(engine, on_conflict="queue", timeout_s=300)
            if answer.status_code != 202:
                self.faults.append(answer.text)
                continue
            self.accepted.append(answer.json()["id"])
            if len(self.accepted) % 3 == 0:
                path = f"/jobs/{self.accepted[-1]}/cancel"
                cancelled = self.stack.request("POST", path)
                if cancelled.status_code not in (200, 409):
                    self.faults.append(cancelled.text)

    def read(self):
        while time.monotonic() < self.ends or self.reads < 6:
            for path in ("/jobs", "/audit", "/engines"):
                answer = self.stack.request("GET", path)
                self.reads += 1
                if answer.status_code != 200:
                    self.faults.append(answer.text)
            time.sleep(0.05)

    def run(self, engines):
        threads = [
            threading.Thread(target=self.write, args=(engines[number % len(engines)],))
            for number in range(8)
        ]
        threads += [threading.Thread(target=self.read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_j11_contended_writes_wait_and_lose_nothing(stack):  # J11
    """Workers carry jobs meanwhile; all on one SQLite file."""
    load = Load(stack, 5)
    open_states = {"accepted", "claimed", "dispatched", "reconciling"}

    def states():
        rows = dict(stack.sql("SELECT id, state FROM console_job"))
        return {rows[job_id.replace("-", "")] for job_id in load.accepted}

    with FakeEngine(stack.run_dir) as one, FakeEngine(stack.run_dir) as two:
        for engine in (one, two):
            stack.register(engine)
        load.run((one, two))
        assert load.faults == []
        assert len(load.accepted) > 5  # how many depends on the machine
        assert load.reads > 5
        for job_id in load.accepted:
            stack.request("POST", f"/jobs/{job_id}/cancel")
        wait_until(lambda: not states() & open_states, every_s=0.2)
        effects = one.journal.effects + two.journal.effects
    assert len(effects) == len(set(effects)), "no job ran twice"
    keys = [job_id.replace("-", "") for job_id in load.accepted]
    rows = dict(stack.sql("SELECT id, state FROM console_job"))
    assert {rows[key] for key in keys} <= {"succeeded", "cancelled"}
    assert {key for key in keys if rows[key] == "succeeded"} == {
        op_id.replace("-", "") for op_id in effects
    }
    ((count, top),) = stack.sql("SELECT COUNT(*), MAX(seq) FROM console_auditentry")
    assert count == top, "the audit has no gap"
    outcomes = stack.sql(
        "SELECT job_id, COUNT(*) FROM console_auditentry WHERE stage = 'outcome' GROUP BY job_id"
    )
    assert all(number == 1 for _, number in outcomes)
    assert set(keys) <= {job_id for job_id, _ in outcomes}
    assert "database is locked" not in stack.log("web") + stack.log("worker")


def test_z06_a_stopped_relay_costs_the_engine_nothing_and_is_right_again(stack, stack_engine):
    """Z06: no old news is shown as fresh, and the newest is once it reads again."""
    stack_engine.heartbeat_s = 0.0  # as many events as the fake can send
    os.killpg(stack.parts["relay"].pid, signal.SIGSTOP)
    try:
        seq = stack_engine.seq
        wait_until(lambda: not stack.engine(stack_engine.name)["online"])  # no old news as fresh
        wait_until(lambda: stack_engine.seq > seq + 200)  # and the publisher goes on
        stack_engine.heartbeat_s = 0.5
        stack_engine.busy(3)
    finally:
        os.killpg(stack.parts["relay"].pid, signal.SIGCONT)

    def is_right():
        view = stack.engine(stack_engine.name)
        return view["online"] and view["ranks"][0]["running"] == 3

    wait_until(is_right)


CHILD = """
import os, sys, threading, time
import django
django.setup()
from console.gateways import zmq as gateway
from console.models import Engine
from engine.protocol import Query

engine = Engine(name="e", driver="quiesce", control_address=sys.argv[1], events_address="")
driver = gateway.ZMQGateway()  # as the registry's: what it keeps is there when a process forks


def talk(count):
    for number in range(count):
        op_id = f"{os.getpid()}.{number}"
        with driver.converse(engine) as conversation:
            conversation.hello(timeout_s=60)
            answer = conversation.call(Query(op_id=op_id), timeout_s=60)
        assert answer.op_id == op_id, (answer.op_id, op_id)


talk(3)  # first use in the parent, before any fork
parent_context = gateway.zmq_context()
children = []
for generation in range(2):
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            talk(2)
            before = len(os.listdir("/proc/self/fd"))
            talk(10)
            # ZeroMQ closes a socket in its own time; ten that leak would be thirty descriptors.
            deadline = time.monotonic() + 60
            while (after := len(os.listdir("/proc/self/fd"))) > before + 9:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)
            own = gateway.zmq_context() is not parent_context
            os._exit(0 if own and after <= before + 9 else 3)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0] * 8, codes
    children.clear()
talk(3)
print("done")
"""


def test_z07_each_forked_process_has_a_context_of_its_own_and_no_reply_crosses(short_dir):  # Z07
    with FakeEngine(short_dir) as engine:
        done = subprocess.run(
            [
                sys.executable,
                "-W",
                "ignore::DeprecationWarning",
                "-c",
                CHILD,
                engine.control_address,
            ],
            cwd=ROOT,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT),
                "DJANGO_SETTINGS_MODULE": "tests.settings",
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        hellos = engine.commands(Hello)
    assert done.stdout.strip() == "done", done.stderr[-2000:]
    # Z03: one that comes back after a death, or beside another, is never taken for it.
    clients = {(got.identity, got.command.client) for got in hellos}
    assert len(hellos) > 190
    assert len(clients) == len({identity for identity, _ in clients}) == 1 + 2 * 8


IMPORTS = """
import pathlib, pkgutil, importlib, sys
import zmq
made = []
original = zmq.Context.__init__
zmq.Context.__init__ = lambda self, *a, **k: (made.append(1), original(self, *a, **k))[1]
import django
django.setup()
import console, api, engine.client
for package in (console, api):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
assert not made, "a module makes a ZeroMQ context when it is imported"
print("none made")
"""


def test_z07_no_module_makes_a_context_or_socket_when_imported():  # Z07
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORTS],
        cwd=ROOT,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": "tests.settings",
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout.strip().endswith("none made"), done.stderr[-2000:]


def test_the_state_folder_is_private_and_a_second_preparation_changes_nothing(stack):
    names = ("admin-password", "admin-token", "secret-key")
    before = {name: (stack.dir / name).read_text() for name in names}
    for name in names:
        assert Path(stack.dir / name).stat().st_mode & 0o777 == 0o600
    assert stack.manage("prepare_state").returncode == 0
    assert {name: (stack.dir / name).read_text() for name in names} == before


def test_commands_say_what_is_wrong_in_one_sentence(stack):
    done = stack.manage("create_token", "nobody", "x", check=False)
    assert done.returncode != 0
    assert done.stderr.strip() == "CommandError: no user is named 'nobody'"
    bad = subprocess.run(
        [sys.executable, ROOT / "manage.py", "check"],
        env={**stack.env, "QUIESCE_ALLOWED_HOSTS": "*"},
        capture_output=True,
        text=True,
        cwd=stack.dir,
    )
    assert bad.returncode == 2
    assert len(bad.stderr.strip().splitlines()) == 1
    assert "QUIESCE_ALLOWED_HOSTS" in bad.stderr


def test_a_body_of_200_megabytes_is_refused_before_it_is_read(stack):
    sent = 0

    def chunks():
        nonlocal sent
        while sent < 200 << 20:
            sent += 1 << 16
            yield b"x" * (1 << 16)

    headers = {"Content-Type": "application/json"}
    try:
        answer = stack.request("POST", "/jobs", content=chunks(), headers=headers)
    except httpx.TransportError:  # the server has hung up while we were sending
        pass
    else:
        assert answer.status_code == 413
        assert answer.headers["content-type"] == "application/problem+json"
    assert sent < 50 << 20
    declared = stack.request("POST", "/jobs", content=b"x" * (2 << 20), headers=headers)
    assert declared.status_code == 413
    assert declared.json()["code"] == "body_too_large"
    assert stack.request("GET", "/jobs").status_code == 200


def test_static_files_are_served_and_warn_of_nothing(stack):
    before = len(stack.log("web"))  # other tests share this server
    answer = plain_http.get(f"{stack.url}/static/ninja/swagger-ui.css")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/css")
    assert "Warning" not in stack.log("web")[before:]

"""The console on real PostgreSQL: few connections (J14), one job once, an untouchable audit."""

from __future__ import annotations

import json
import socket as plain_socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import psycopg
import pytest
from websockets.sync.client import connect

from tests.fakes import plain_http
from tests.fakes.engine import FakeEngine
from tests.fakes.stack import Stack
from tests.fakes.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.process

POOL = 6
SOCKETS = 200


@pytest.fixture(scope="module")
def pg_stack(postgres_url):
    made = Stack(
        database_url=postgres_url,
        workers=2,
        # As fast as it can: what is looked at is the pool.
        env={"QUIESCE_DATABASE_POOL_SIZE": str(POOL), "QUIESCE_API_RATE_PER_SECOND": "100000"},
    )
    try:
        made.up()
        yield made
    finally:
        made.down()


def connections(stack):
    """Server-side connections of all processes of the stack."""
    ((count,),) = stack.sql(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = 'postgres'"
        " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    return count


def test_a_job_runs_and_its_audit_cannot_be_touched(pg_stack):
    with FakeEngine(pg_stack.run_dir) as engine:
        pg_stack.register(engine)
        job_id = pg_stack.submit(engine, timeout_s=300)
        assert pg_stack.ended(job_id)["state"] == "succeeded"
        with ThreadPoolExecutor(10) as pool:
            engine.busy(1)
            answers = list(pool.map(lambda _: pg_stack.ask(engine, timeout_s=300), range(10)))
            assert sorted(one.status_code for one in answers) == [202] + [409] * 9
            engine.idle()
    assert pg_stack.audit(job_id) == [
        "job.accepted",
        "job.claimed",
        "job.dispatched",
        "job.succeeded",
    ]
    for statement in (
        "UPDATE console_auditentry SET body = 'x'",
        "DELETE FROM console_auditentry",
        "TRUNCATE console_auditentry",
        "INSERT INTO console_auditentry SELECT seq + 999, v, body, created_at, action, stage,"
        " actor_name, engine_name, NULL FROM console_auditentry WHERE seq = 1",
    ):
        with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
            pg_stack.sql(statement)
    ((count, top),) = pg_stack.sql("SELECT count(*), max(seq) FROM console_auditentry")
    assert count == top


def test_j14_idle_sockets_and_requests_stay_within_the_pool(pg_stack):
    with FakeEngine(pg_stack.run_dir) as engine, pg_stack.login() as client:
        pg_stack.register(engine)
        job_id = pg_stack.submit(engine, timeout_s=300)
        pg_stack.ended(job_id)
        base = connections(pg_stack)
        cookie = f"quiesce_sid={client.cookies['quiesce_sid']}"
        sockets = [open_socket(pg_stack, cookie, job_id) for _ in range(SOCKETS)]
        time.sleep(0.5)
        idle = connections(pg_stack)
        highest = [idle]
        for _ in range(10):
            cancelled_request(pg_stack, job_id)
        with (
            plain_http.client(
                base_url=f"{pg_stack.url}/api/v1",
                headers={"Authorization": f"Bearer {pg_stack.token}"},
                limits=httpx.Limits(max_connections=50),
            ) as api,
            ThreadPoolExecutor(50) as pool,
        ):
            futures = [pool.submit(api.get, f"/jobs/{job_id}") for _ in range(500)]
            while not all(future.done() for future in futures):
                highest.append(connections(pg_stack))
                time.sleep(0.1)
            assert {future.result().status_code for future in futures} == {200}
        for one in sockets:
            one.close()
    # web has its pool; worker, relay and reconciler hold a few of their own.
    assert max(highest) <= POOL + 8, highest
    assert idle <= base + POOL
    wait_until(lambda: connections(pg_stack) <= base + 2, every_s=0.5)
    assert "too many" not in pg_stack.log("web")


def test_an_asker_and_a_dispatch_take_their_locks_in_one_order(pg_stack):
    """Found by generated requests, as a 503: each held what the other one waited for."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with FakeEngine(pg_stack.run_dir) as engine:
        pg_stack.register(engine)  # its identity is noted with its first job
        pg_stack.kill("worker")
        job_id = pg_stack.submit(engine, timeout_s=300)
        with psycopg.connect(pg_stack.database_url) as asker:
            asker.execute("SET deadlock_timeout = 1")  # ms: it is the one that would be told
            asker.execute("SELECT 1 FROM console_engine WHERE name = %s FOR UPDATE", [engine.name])
            pg_stack.start("worker")
            wait_until(lambda: pg_stack.sql(waiting) != [(0,)])
            asker.execute("SELECT pg_advisory_xact_lock(1903520101)")  # as an entry's append does
        assert pg_stack.ended(job_id)["state"] == "succeeded"


def open_socket(stack, cookie, job_id):
    one = connect(
        f"ws://127.0.0.1:{stack.port}/ws/live/",
        origin=stack.url,
        additional_headers={"Cookie": cookie},
        proxy=None,
    ).__enter__()
    one.recv(timeout=PATIENCE_S)
    one.send(json.dumps({"type": "subscribe", "topics": [f"job:{job_id}"]}))
    return one


def cancelled_request(stack, job_id):
    """A long wait whose caller hangs up."""
    with plain_socket.create_connection(("127.0.0.1", stack.port)) as raw:
        raw.sendall(
            f"GET /api/v1/jobs/{job_id}?wait_s=30 HTTP/1.1\r\nHost: 127.0.0.1:{stack.port}\r\n"
            f"Authorization: Bearer {stack.token}\r\n\r\n".encode()
        )


def test_a_nul_is_answered_as_what_it_is_and_not_as_a_database_that_fails(pg_stack):
    for path in ("/engines/%00", "/jobs?engine=%00", "/jobs?engine=a%00"):
        assert pg_stack.request("GET", path).status_code == 404, path
    with pg_stack.login() as client:
        for path in ("/jobs?engine=%00", "/flush?engine=%00", "/audit?job=%00", "/palette?q=%00"):
            assert client.get(path).status_code < 500, path
        form = {"engine": "x", "mode": "wait", "timeout_s": "5", "reason": "r", "confirm": "x"}
        for field in ("engine", "reason", "confirm", "key", "mode"):
            data = {**form, field: "a\x00", "csrfmiddlewaretoken": client.csrf}
            if field == "engine":
                data["confirm"] = data["engine"]
            answer = client.post("/flush", data=data, headers={"Origin": pg_stack.url})
            assert answer.status_code in (404, 422), (field, answer.status_code)

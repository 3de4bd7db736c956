"""GET /events, ETags, and a caller's share: what automation leans on."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.conf import settings
from django.core.cache import cache

from api.main import api as ninja_api
from console.models import AuditEntry, AuditSegment
from console.selectors.audit import audit_head
from console.services.job_control import job_cancel
from tests.fakes.plain_http import client
from tests.fakes.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.django_db


def test_a_job_is_read_with_an_etag_and_changed_only_as_it_was_read(api, ask):
    job = ask()
    path = f"/api/v1/jobs/{job.pk}"
    first = api.get(path)
    assert first["ETag"] == f'"{job.version}"'
    assert api.get(path, headers={"If-None-Match": first["ETag"]}).status_code == 304
    stale = api.post(
        f"{path}/cancel", {}, content_type="application/json", headers={"If-Match": '"99"'}
    )
    assert (stale.status_code, stale.json()["code"]) == (412, "precondition_failed")
    assert stale.json()["version"] == job.version
    nonsense = api.post(
        f"{path}/cancel", {}, content_type="application/json", headers={"If-Match": "x"}
    )
    assert nonsense.status_code == 422
    done = api.post(
        f"{path}/cancel", {}, content_type="application/json", headers={"If-Match": first["ETag"]}
    )
    assert done.status_code == 200 and done["ETag"] != first["ETag"]
    assert api.get(path, headers={"If-None-Match": first["ETag"]}).status_code == 200
    again = api.post(
        f"{path}/retry", {}, content_type="application/json", headers={"If-Match": first["ETag"]}
    )
    assert again.status_code == 412


def test_a_caller_has_a_share_of_a_second_and_nobody_elses(api, browser, monkeypatch):
    cache.clear()
    throttle = ninja_api.throttle[0]
    monkeypatch.setattr(throttle, "num_requests", 3)
    monkeypatch.setattr(throttle, "duration", 3600)
    answers = [api.get("/api/v1/me").status_code for _ in range(4)]
    assert answers == [200, 200, 200, 429]
    refused = api.get("/api/v1/me")
    assert refused["Content-Type"] == "application/problem+json"
    assert int(refused["Retry-After"]) >= 1 and refused.json()["code"] == "too_many_requests"
    assert browser.get("/api/v1/me").status_code == 200
    cache.clear()
    assert settings.API_RATE_PER_SECOND == 200


def test_what_is_to_come_cannot_be_asked_for_and_what_is_closed_is_410_with_how_all_stands(
    api, ask, engine, valkey
):
    job = ask()
    head = audit_head()
    assert api.get(f"/api/v1/events?since={head + 1}").status_code == 422
    assert api.get("/api/v1/events", headers={"Last-Event-ID": "x"}).status_code == 422
    newest = AuditEntry.objects.get(seq=head - 1)
    AuditSegment.objects.create(
        first=1, last=newest.seq, head_hash=newest.hash, first_at=newest.created_at,
        last_at=newest.created_at, closed_at=newest.created_at, closed_by="test",
        file_name="f", file_digest="0" * 64, record="{}",
    )  # fmt: skip
    gone = api.get("/api/v1/events?since=1")
    assert (gone.status_code, gone.json()["code"]) == (410, "history_gone")
    snapshot = gone.json()["snapshot"]
    assert snapshot["seq"] == head
    assert [one["id"] for one in snapshot["jobs"]] == [str(job.pk)]
    assert [one["name"] for one in snapshot["engines"]] == ["local"]


def followed(stack, since, *, for_s=5.0, until=None):
    """Events as a client reads them."""
    found = []
    with (
        client(
            base_url=stack.url, headers={"Authorization": f"Bearer {stack.token}"}, timeout=20
        ) as http,
        http.stream("GET", f"/api/v1/events?since={since}&for_s={for_s}") as answer,
    ):
        assert answer.status_code == 200
        event = {}
        for line in answer.iter_lines():
            if not line:
                found.append(event)
                if until is not None and until(event):
                    return found
                event = {}
                continue
            name, _, value = line.partition(": ")
            event[name] = json.loads(value) if name == "data" else value
    return found


@pytest.mark.process
def test_every_step_of_a_job_comes_once_in_order_over_breaks(stack, stack_engine):
    since = stack.request("GET", "/audit/head").json()["seq"]
    job = stack.submit(stack_engine)

    def ended(event):
        return event["event"] == "job" and event["data"]["stage"] == "outcome"

    whole = [one for one in followed(stack, since, until=ended) if one["event"] == "job"]
    assert whole[0]["data"]["stage"] == "intent"
    assert all(one["data"]["job"]["id"] == job for one in whole)
    numbers = [int(one["id"]) for one in whole]
    assert numbers == sorted(set(numbers))
    # The same again, one event a connection: each goes on behind the last.
    pieces, place = [], since
    while len(pieces) < len(whole):
        event = followed(stack, place, until=lambda one: one["event"] == "job")[-1]
        pieces.append(event)
        place = int(event["id"])
    assert [one["id"] for one in pieces] == [one["id"] for one in whole]


def test_cancel_without_a_version_goes_as_before(ask, ana):
    assert job_cancel(job_id=ask().pk, actor=ana).state == "cancelled"


@pytest.mark.process
def test_a_job_is_asked_for_and_awaited_in_one_request_and_says_what_each_rank_did(
    stack, stack_engine
):
    body = {"engine": stack_engine.name, "kind": "flush_cache", "params": {"timeout_s": 30}}
    done = stack.request("POST", "/jobs?wait_s=60", json=body)
    assert (done.status_code, done.json()["state"]) == (202, "succeeded")
    assert done.json()["problem"] is None
    stack_engine.fail_ranks = {1}
    partly = stack.request("POST", "/jobs?wait_s=60", json=body).json()
    problem = partly["problem"]
    assert (partly["state"], problem["status"]) == ("partial", 409)
    assert [(rank["dp_rank"], rank["state"]) for rank in problem["ranks"]] == [
        (0, "succeeded"), (1, "failed"),
    ]  # fmt: skip
    waiting = stack.request("POST", "/jobs?wait_s=61", json=body)
    assert waiting.status_code == 422


def revoke(stack, name, token):
    stack.manage("revoke_token", token)


def disable(stack, name, token):
    stack.manage("set_user", name, "--disable")


def take(stack, name, token):
    stack.manage("take_role", name, "operator")


@pytest.mark.process
@pytest.mark.parametrize(("end", "status"), [(revoke, 401), (disable, 401), (take, 403)])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_wait_is_answered_by_what_its_asker_may_do_by_then(
    stack, stack_engine, method, end, status
):
    """The rights go while it waits, the job ends after: its end is not for them any more."""
    name = f"waiter{uuid.uuid4().hex[:6]}"
    stack.manage("create_user", name, "--role", "operator", "--service")
    token = stack.manage("create_token", name, "t").stdout.strip()
    stack_engine.busy(1)
    if method == "POST":
        path = "/jobs?wait_s=60"
        body = {"engine": stack_engine.name, "kind": "flush_cache", "params": {"timeout_s": 300}}
    else:
        path, body = f"/jobs/{stack.submit(stack_engine, timeout_s=300)}?wait_s=60", None

    def wait():
        headers = {"Authorization": f"Bearer {token}"}
        return stack.request(method, path, json=body, headers=headers, timeout=PATIENCE_S)

    def pending():
        found = stack.request("GET", f"/jobs?engine={stack_engine.name}&open=true").json()["items"]
        return found[0]["id"] if found else None

    def has_begun():
        tokens = stack.request("GET", "/tokens").json()["items"]
        return pending() and any(one["owner"] == name and one["last_used_at"] for one in tokens)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        wait_until(has_begun)
        stack.until(pending(), phase="waiting for idle")
        end(stack, name, token)
        assert stack.request("POST", f"/jobs/{pending()}/cancel").status_code == 200
        assert waiting.result(PATIENCE_S).status_code == status


@pytest.mark.process
def test_a_wait_of_a_session_ends_with_it(stack, stack_engine):
    stack_engine.busy(1)
    job_id = stack.submit(stack_engine, timeout_s=300)
    name, password = f"waiter{uuid.uuid4().hex[:6]}", "a-long-enough-password-7"
    stack.manage("create_user", name, "--password-stdin", said=password)
    with stack.login(name, password) as client, ThreadPoolExecutor(1) as pool:
        path = f"{stack.url}/api/v1/jobs/{job_id}"
        assert client.get(f"{path}?wait_s=0.1").status_code == 200
        waiting = pool.submit(client.get, f"{path}?wait_s=60", timeout=PATIENCE_S)
        stack.until(job_id, phase="waiting for idle")
        stack.manage("reset_password", name, "--password-stdin", said="another-long-pass-9")
        assert stack.request("POST", f"/jobs/{job_id}/cancel").status_code == 200
        assert waiting.result(PATIENCE_S).status_code == 401

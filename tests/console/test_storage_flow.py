"""Storage backends from the API to an engine and back, through the real processes."""

from __future__ import annotations

import json

import pytest

from engine.protocol import AttachStorage, Breaker, DetachStorage, SetCachePolicies
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.process

URL = "valkey://kv.internal:6379/0"
VALKEY = {
    "kind": "attach_storage_backend",
    "backend": "valkey",
    "config": {"url": URL, "password": "one-of-a-kind"},
}
FILE = {"kind": "attach_storage_backend", "backend": "file", "config": {"max_size": 1 << 30}}
DETACH = {"kind": "detach_storage_backend"}


@pytest.fixture
def done(stack, stack_engine):
    """Ask, and wait for the end."""

    def do(**params):
        return stack.ended(stack.submit(stack_engine, **params))

    return do


def test_attach_switch_and_back_by_the_recorded_id_without_a_secret(stack, stack_engine, done):
    first = done(**VALKEY, prefetch_policy="wait_complete")
    assert first["state"] == "succeeded", first["error"]
    was = first["reply"]["storage"]
    wait_until(lambda: (stack.engine(stack_engine.name)["storage"] or {}).get("config_id"))
    view = stack.engine(stack_engine.name)
    assert view["storage"]["config_id"] == was["config_id"]
    assert view["storage"]["config"]["password"].startswith("hmac:")
    assert view["policies"]["prefetch_policy"] == "wait_complete"
    assert [rank["storage"]["backend"] for rank in view["ranks"]] == ["valkey", "valkey"]
    switched = done(**FILE, replace=True, mode="drain")
    assert switched["state"] == "succeeded", switched["error"]
    assert switched["reply"]["storage_before"]["config_id"] == was["config_id"]
    back = done(
        kind="attach_storage_backend", backend="valkey", config_id=was["config_id"], replace=True
    )
    assert back["state"] == "succeeded", back["error"]
    assert back["reply"]["storage"] == was
    sent = stack_engine.submits(back["id"])[0].operation
    assert sent == AttachStorage(
        backend="valkey", config_id=was["config_id"], replace=True
    )  # no setting, no secret
    values = stack_engine.storage.values[was["config_id"]]
    assert values == {"password": "one-of-a-kind"}


def test_another_backend_without_replace_is_refused_and_nothing_changes(stack_engine, done):
    assert done(**FILE)["state"] == "succeeded"
    refused = done(**VALKEY)
    assert (refused["state"], refused["error"]["code"]) == ("failed", "invalid_argument")
    assert "set replace" in refused["error"]["message"]
    assert stack_engine.storage.attached.backend == "file"


def test_an_attach_without_settings_keeps_those_that_are_attached(stack, stack_engine, done):
    was = done(**VALKEY)["reply"]["storage"]
    kept = done(
        kind="attach_storage_backend", backend="valkey", prefetch_policy="wait_complete"
    )  # not even the url, which is required
    assert kept["state"] == "succeeded", kept["error"]
    assert kept["params"]["config"] is None
    assert kept["reply"]["storage"] == kept["reply"]["storage_before"] == was
    assert kept["reply"]["policies"]["prefetch_policy"] == "wait_complete"
    sent = stack_engine.submits(kept["id"])[0].operation
    assert sent == AttachStorage(backend="valkey", prefetch_policy="wait_complete")
    defaults = done(kind="attach_storage_backend", backend="file", config={}, replace=True)
    assert stack_engine.submits(defaults["id"])[0].operation.config == "{}"


def test_the_deadline_of_an_attach_begins_when_every_rank_has_probed(stack, stack_engine):
    stack_engine.storage.prepare_s = 3600
    job_id = stack.submit(stack_engine, **FILE, timeout_s=5)
    probing = stack.until(job_id, phase="preparing", state="dispatched")
    assert probing["deadline_at"] is None
    wait_until(lambda: stack_engine.submits(job_id))  # it is recorded, then sent
    start_by_s = stack_engine.submits(job_id)[0].start_by_clock_s - stack_engine.clock_s
    assert start_by_s > 300  # what is left for the probes is not taken from the 5 s
    stack_engine.busy(1)
    stack_engine.storage.prepare_s = 0
    waiting = stack.until(job_id, phase="waiting for idle")
    assert waiting["deadline_at"]
    assert stack.request("POST", f"/jobs/{job_id}/cancel").status_code == 200
    stack.until(job_id, state="cancelled")


def test_an_attach_that_a_rank_refuses_names_each_rank_and_its_reason(stack, stack_engine, done):
    """H02: one rank cannot; nothing is attached anywhere, and the fault gone, both are."""
    stack_engine.storage.refuse_ranks = {1: "connect to kv.internal: refused"}
    job = done(**VALKEY)
    assert job["state"] == "failed"
    assert "rank 1: connect to kv.internal: refused" in job["error"]["message"]
    parts = {rank["dp_rank"]: (rank["state"], rank["message"]) for rank in job["ranks"]}
    assert parts == {
        0: ("not_started", "could have; nothing was changed"),
        1: ("failed", "connect to kv.internal: refused"),
    }
    assert job["reply"]["storage"] is None
    assert [rank["storage"] for rank in stack.engine(stack_engine.name)["ranks"]] == [None, None]
    for _ in range(2):
        detached = done(**DETACH)
        assert detached["state"] == "succeeded", detached["error"]
    stack_engine.storage.refuse_ranks = {}
    assert done(**VALKEY)["state"] == "succeeded"


def test_a_mixed_attach_is_partial_and_says_which_rank_holds_what(stack, stack_engine, done):
    stack_engine.fail_ranks = {1}
    stack_engine.storage.fail_reasons = {1: "could not start its threads"}
    job = done(**VALKEY)
    assert job["state"] == "partial"
    parts = {rank["dp_rank"]: (rank["state"], rank["message"]) for rank in job["ranks"]}
    assert parts == {0: ("succeeded", "ok"), 1: ("failed", "could not start its threads")}

    def held():
        view = stack.engine(stack_engine.name)
        return [rank["storage"] and rank["storage"]["backend"] for rank in view["ranks"]]

    wait_until(lambda: held() == ["valkey", None])
    outcome = stack.request("GET", f"/audit?job={job['id']}").json()["items"][0]["body"]
    assert outcome["storage"] == {
        "backend": "valkey",
        "config_id": job["reply"]["storage"]["config_id"],
    }
    assert outcome["storage_before"] is None
    assert [rank["message"] for rank in outcome["ranks"]] == ["ok", "could not start its threads"]


def test_detach_deletes_nothing_and_clear_needs_something_attached(stack_engine, done):
    assert done(**FILE)["state"] == "succeeded"
    detached = done(**DETACH)
    assert detached["state"] == "succeeded"
    assert detached["reply"]["storage"] is None
    assert detached["reply"]["storage_before"]["backend"] == "file"
    refused = done(kind="clear_storage_backend")
    assert (refused["state"], refused["error"]["code"]) == ("failed", "invalid_argument")
    assert stack_engine.storage.cleared == 0
    done(**FILE)
    assert done(kind="clear_storage_backend")["state"] == "succeeded"
    assert stack_engine.storage.cleared == 1
    assert stack_engine.storage.attached.backend == "file"


def test_a_busy_engine_is_waited_for_but_not_by_force_and_not_for_policies(
    stack, stack_engine, done
):
    assert done(**FILE)["state"] == "succeeded"
    stack_engine.busy(1)
    policies = done(kind="set_cache_policies", write_policy="write_back")
    assert policies["state"] == "succeeded"
    sent = stack_engine.submits(policies["id"])[0].operation
    assert sent == SetCachePolicies(write_policy="write_back")
    waiting = stack.submit(stack_engine, **DETACH, timeout_s=300)
    stack.until(waiting, phase="waiting for idle")
    assert stack.request("POST", f"/jobs/{waiting}/cancel").status_code == 200
    stack.until(waiting, state="cancelled")
    forced = done(**DETACH, force=True)
    assert forced["state"] == "succeeded"
    assert stack_engine.submits(forced["id"])[0].operation == DetachStorage(force=True)
    conflict = stack.request("POST", f"/jobs/{forced['id']}/extend", json={"by_s": 5})
    assert conflict.status_code == 409


def test_secrets_that_an_engine_forgot_fail_the_job_in_words(stack, stack_engine, done):
    stack_engine.busy(1)
    first = stack.submit(stack_engine, timeout_s=300)
    stack.until(first, phase="waiting for idle")
    queued = stack.submit(stack_engine, **VALKEY, on_conflict="queue")
    stack_engine.storage.kept.clear()  # as a restart does
    stack_engine.idle()
    job = stack.ended(queued)
    assert (job["state"], job["error"]["code"]) == ("failed", "invalid_argument")
    assert "no secrets are kept" in job["error"]["message"]


def test_a_breaker_and_drift_are_seen_at_once(stack, stack_engine, done):
    assert done(**VALKEY)["state"] == "succeeded"
    stack_engine.storage.breakers = {1: Breaker.OPEN}
    stack_engine.storage.drifting = {0}

    def told():
        ranks = stack.engine(stack_engine.name)["ranks"]
        return [(r["storage"] or {}).get("breaker") for r in ranks], [
            (r["storage"] or {}).get("drifts") for r in ranks
        ]

    wait_until(lambda: told() == (["closed", "open"], [True, False]))
    config = stack.engine(stack_engine.name)["storage"]["config"]
    assert json.dumps(config).count("hmac:") == 1


def test_a_switch_is_undone_and_a_failed_attach_retried_by_one_call(stack, stack_engine, done):
    first = done(**VALKEY, prefetch_policy="wait_complete")
    was = first["reply"]["storage"]
    switched = done(**FILE, replace=True)
    undo = stack.request("POST", f"/jobs/{switched['id']}/undo")
    assert undo.status_code == 202, undo.text
    back = stack.ended(undo.json()["id"])
    assert back["state"] == "succeeded" and back["reply"]["storage"] == was
    assert back["origin"] == {"job": switched["id"], "follow": "undo"}
    wait_until(lambda: stack.engine(stack_engine.name)["storage"]["backend"] == "valkey")
    late = stack.request("POST", f"/jobs/{switched['id']}/undo")
    assert late.status_code == 409 and "changed since" in late.json()["detail"]
    stack_engine.storage.refuse_ranks = {1: "connect to kv.internal: refused"}
    failed = done(**FILE, replace=True)
    assert failed["state"] == "failed"
    stack_engine.storage.refuse_ranks = {}
    again = stack.request("POST", f"/jobs/{failed['id']}/retry").json()
    assert stack.ended(again["id"])["reply"]["storage"]["backend"] == "file"


def test_a_retry_attaches_with_the_password_that_was_given_once(stack, stack_engine, done):
    stack_engine.storage.refuse_ranks = {0: "connect to kv.internal: refused"}
    failed = done(**VALKEY)
    assert failed["state"] == "failed"
    stack_engine.storage.refuse_ranks = {}
    again = stack.request("POST", f"/jobs/{failed['id']}/retry").json()
    made = stack.ended(again["id"])
    assert made["state"] == "succeeded", made["error"]
    config_id = made["reply"]["storage"]["config_id"]
    assert stack_engine.storage.values[config_id] == {"password": "one-of-a-kind"}

"""Storage backends over the API: kinds, settings, refusals by their path, plans, secrets."""

from __future__ import annotations

import json
from http import HTTPStatus

import pytest

from console.actors import Actor
from console.models import AuditEntry, Job
from console.services.engines import engine_register
from engine.protocol import BackendView, KeepSecrets, StorageBackend, secrets_of
from tests.api.test_jobs import problem
from tests.console.pages.conftest import CONFIG_ID, attached, seen, stored_rank

__all__ = ["seen"]

pytestmark = pytest.mark.django_db

URL = "valkey://kv:6379/0"


def attach(backend="file", config=None, **params):
    return {
        "engine": "local",
        "kind": "attach_storage_backend",
        "params": {"backend": backend, "config": config or {}, **params},
    }


def test_each_backend_and_its_settings_are_told(api, client):
    found = api.get("/api/v1/backends").json()["items"]
    assert [one["backend"] for one in found] == [str(one) for one in StorageBackend]
    valkey = next(one for one in found if one["backend"] == "valkey")
    kinds = {one["name"]: one["kind"] for one in valkey["settings"]}
    assert kinds["password"] == "secret"
    assert {one["backend"] for one in found if one["is_experimental"]} == {"hf3fs", "eic"}
    schema = client.get("/api/v1/openapi.json").json()["components"]["schemas"]["AttachParams"]
    *schemas, null = schema["properties"]["config"]["anyOf"]
    assert null == {"type": "null"}
    variants = {one["title"]: one for one in schemas}
    assert set(variants) == {str(one) for one in StorageBackend}
    assert variants["valkey"]["properties"]["password"]["secret"] is True
    assert variants["valkey"]["required"] == ["url"]


@pytest.mark.parametrize(
    ("backend", "config", "more", "field", "says"),
    [
        ("file", {"max_size": "1"}, {}, "params.config.max_size", "must be a whole number from"),
        ("file", {"max_size": 1}, {}, "params.config.max_size", "from 65,536"),
        ("file", {"direct_io": "maybe"}, {}, "params.config.direct_io", "one of auto, off, on"),
        ("file", {"prefetch_threshold": "abc"}, {}, "params.config.prefetch_threshold", "whole"),
        ("file", {"prefetch_threshold": -1}, {}, "params.config.prefetch_threshold", "from 1"),
        ("file", {"io_timeout": 0}, {}, "params.config.io_timeout", "greater than 0"),
        ("file", {"io_timeout": 10**400}, {}, "params.config.io_timeout", "greater than 0"),
        ("file", {"nonesuch": 1}, {}, "params.config.nonesuch", "is no setting of file"),
        ("file", {"file_storage_path": "a\x00b"}, {}, "params.config.file_storage_path", "control"),
        ("valkey", {}, {}, "params.config.url", "is required"),
        ("valkey", {"url": "http://kv"}, {}, "params.config.url", "valkey://host:port/db"),
        ("valkey", {"url": "unix:///s?password=x"}, {}, "params.config.url", "setting password"),
        ("valkey", {"url": URL, "password": "hmac:00"}, {}, "params.config.password", "config_id"),
        (
            "valkey",
            {"url": URL},
            {"rank_configs": {"1": {"ttl": 1.5}}},
            "params.rank_configs.1.ttl",
            "whole number",
        ),
        (
            "valkey",
            {"url": URL},
            {"rank_configs": {"one": {}}},
            "params.rank_configs.one.[key]",
            "pattern",
        ),
        ("nixl", {"plugin": "GDS"}, {}, "params.config.plugin", "one of OBJ, POSIX"),
        ("file", {}, {"config_id": "xyz"}, "params.config_id", "pattern"),
        ("file", {"ttl": 1}, {"config_id": CONFIG_ID}, "params.config_id", "must be empty"),
        ("file", {}, {"secrets": "abc"}, "params.secrets", "not permitted"),
        ("file", {}, {"write_policy": "never"}, "params.write_policy", "write_through"),
        ("lmdb", {}, {}, "params.backend", "mooncake"),
    ],
)
def test_a_bad_setting_is_named_by_its_path(post, engine, backend, config, more, field, says):
    document = problem(post(attach(backend, config, **more)), 422)
    assert document["errors"][0]["field"] == field
    assert says in document["errors"][0]["message"]
    assert not Job.objects.exists()
    assert not AuditEntry.objects.filter(action__startswith="job").exists()


@pytest.mark.parametrize(
    "raw",
    [
        '{"engine":"local","kind":"attach_storage_backend",'
        f'"params":{{"backend":"file","config":{text}}}}}'
        for text in (
            '"{}"',
            "[]",
            "1",
            '{"io_timeout":NaN}',
            '{"io_timeout":Infinity}',
            '{"max_size":1e400}',
            '{"a":' * 500 + "1" + "}" * 500,
        )
    ],
)
def test_what_is_no_object_of_settings_is_refused_and_never_a_fault(post, engine, raw):
    answer = post(raw=raw)
    assert answer.status_code in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
    assert not Job.objects.exists()


def test_every_wrong_setting_is_named_at_once(post, engine):
    config = {"url": "x", "ttl": -1, "odd": 1}
    document = problem(post(attach("valkey", config, rank_configs={"0": {"prefix": ""}})), 422)
    fields = {one["field"] for one in document["errors"]}
    assert fields == {
        *("params.config.url", "params.config.ttl", "params.config.odd"),
        "params.rank_configs.0.prefix",
    }


@pytest.mark.parametrize("params", [{}, {"write_policy": None}])
def test_policies_must_say_something(post, engine, params):
    body = {"engine": "local", "kind": "set_cache_policies", "params": params}
    assert "must be given" in problem(post(body), 422)["detail"]
    del body["params"]
    assert problem(post(body), 422)["errors"][0]["field"] == "params"


def test_a_plan_says_what_would_be_refused_here(post, engine, seen, valkey):
    seen(
        hierarchical=True,
        storage=attached(),
        ranks=[stored_rank(0), stored_rank(1)],
        backends=[BackendView(backend=StorageBackend.EIC, problem="no package")],
    )

    def plan(body):
        return post(body, path="/api/v1/jobs?dry_run=true").json()

    taken = plan(attach())
    assert taken["would_be_accepted"] is False
    assert "valkey c41d77e0 is attached" in taken["refusals"][0]["message"]
    assert taken["storage"]["config"]["password"].startswith("hmac:")
    policies = {"engine": "local", "kind": "attach_storage_backend"}
    kept = plan({**policies, "params": {"backend": "valkey", "write_policy": "write_back"}})
    assert (kept["would_be_accepted"], kept["params"]["config"]) == (True, None)
    assert kept["undo"] == "Set the policies again; what is attached stays."
    assert plan({**policies, "params": {"backend": "file"}})["would_be_accepted"] is False
    good = plan(attach(replace=True))
    assert good["would_be_accepted"] is True
    assert "Switch back to valkey c41d77e0" in good["undo"]
    assert good["cache_lost"] == []
    eic = attach("eic", {"remote_url": "eic://h:1", "eic_instance_id": "i"}, replace=True)
    assert "no package" in plan(eic)["refusals"][0]["message"]
    ranks = attach(replace=True, rank_configs={"7": {"max_size": 1 << 20}})
    assert "names rank 7" in plan(ranks)["refusals"][0]["message"]
    clear = plan({"engine": "local", "kind": "clear_storage_backend"})
    assert (clear["would_be_accepted"], clear["can_be_undone"]) == (True, False)
    seen(hierarchical=False)
    assert "no host tier" in plan(attach())["refusals"][0]["message"]
    cleared = plan({"engine": "local", "kind": "clear_storage_backend"})
    assert "nothing is attached" in cleared["refusals"][0]["message"]
    assert not Job.objects.exists()


def test_an_engine_tells_its_tiers(api, engine, seen, valkey):
    seen(hierarchical=True, storage=attached(), ranks=[stored_rank(0), stored_rank(1)])
    view = api.get("/api/v1/engines/local").json()
    assert view["storage"]["backend"] == "valkey"
    assert view["policies"] == {"write_policy": "write_through", "prefetch_policy": "timeout"}
    assert view["ranks"][0]["host"]["total_pages"] == 400
    assert view["ranks"][0]["storage"]["config_hash"]


@pytest.fixture
def near(fake_engine, db):
    """A registered engine that answers."""
    engine_register(
        name=fake_engine.name,
        control_address=fake_engine.control_address,
        events_address=fake_engine.events_address,
        actor=Actor.system("test"),
    )
    return fake_engine


def secret_job(near, password="hunter-2-canary"):
    return {**attach("valkey", {"url": URL, "password": password}), "engine": near.name}


def test_a_secret_goes_to_the_engine_and_comes_back_as_a_fingerprint(post, near, valkey):
    answer = post(secret_job(near))
    assert answer.status_code == 202, answer.content
    job = Job.objects.get()
    fingerprint = near.storage.fingerprint("hunter-2-canary")
    assert job.params["config"]["password"] == fingerprint
    assert job.params["secrets"] == str(job.pk)
    (kept,) = [got.command for got in near.commands(KeepSecrets)]
    assert (kept.name, kept.values) == (str(job.pk), {"password": "hunter-2-canary"})
    stored = json.dumps(list(Job.objects.values()), default=str)
    stored += "".join(AuditEntry.objects.values_list("body", flat=True))
    assert "hunter-2" not in stored + answer.content.decode()
    assert fingerprint in stored


def test_the_same_key_with_the_same_secret_is_the_same_job(post, near, valkey):
    key = {"headers": {"Idempotency-Key": "k-1"}}
    first, again = post(secret_job(near), **key), post(secret_job(near), **key)
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["id"] == again.json()["id"]
    other = problem(post(secret_job(near, "another"), **key), 422, "idempotency_key_reused")
    assert other["job"] == first.json()["id"]
    assert Job.objects.count() == 1


def test_without_its_engine_a_secret_is_refused_and_nothing_is_stored(post, near, valkey):
    near.stop()
    answer = post(secret_job(near))
    document = problem(answer, 503, "engine_unreachable")
    assert answer["Retry-After"]
    assert "hunter-2" not in json.dumps(document)
    assert not Job.objects.exists()
    assert not AuditEntry.objects.filter(action__startswith="job").exists()
    plain = post({**attach(), "engine": near.name})
    assert plain.status_code == 202  # no secret: the database is enough


def test_every_backend_with_secrets_masks_each_of_them(post, engine, seen, valkey):
    seen(hierarchical=True)
    required = {"valkey": {"url": URL}}
    for backend in StorageBackend:
        for name in secrets_of(backend):
            config = {**required.get(str(backend), {}), name: "canary-of-a-plan"}
            answer = post(attach(str(backend), config), path="/api/v1/jobs?dry_run=1")
            assert answer.status_code == 200, answer.content
            assert "canary-of-a-plan" not in answer.content.decode()
            assert answer.json()["params"]["config"][name] == "hmac:pending"

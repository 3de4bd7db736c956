"""Weight jobs, plans, uploads and checkpoints over the API."""

from __future__ import annotations

import hashlib

import pytest

from console.actors import Actor
from console.choices import JobKind
from console.models import AuditEntry, Job
from console.services.engines import engine_register
from tests.api.test_jobs import problem
from tests.console.pages.conftest import rank_view, seen
from tests.console.test_params import GOOD
from tests.console.test_safetensors import whole

__all__ = ["seen"]

pytestmark = pytest.mark.django_db
FILE = whole()


@pytest.fixture(autouse=True)
def _folder(settings, tmp_path):
    settings.STATE_DIR = tmp_path


def send(api, content=FILE, name="w.safetensors"):
    begun = api.post(
        "/api/v1/uploads",
        {"name": name, "size_bytes": len(content)},
        content_type="application/json",
    )
    assert begun.status_code == 201, begun.content
    return api.generic(
        "PATCH",
        f"{begun['Location']}?offset=0",
        content,
        content_type="application/octet-stream",
    )


@pytest.mark.parametrize(
    "kind", [one for one in JobKind.values if one != "update_weights_from_tensor"]
)
def test_each_kind_is_accepted_and_stored_as_asked(post, engine, kind):
    answer = post({"engine": engine.name, "kind": kind, "params": GOOD[kind], "reason": "r"})
    assert answer.status_code == 202, answer.content
    job = answer.json()
    assert job["kind"] == kind
    assert job["params"].items() >= GOOD[kind].items() or kind == "update_weights_from_distributed"
    again = post({"engine": engine.name, "kind": kind, "params": GOOD[kind]})
    assert again.status_code == (202 if kind == "abort_requests" else 409)


def test_each_kind_and_its_fields_are_in_the_schema(client):
    schemas = client.get("/api/v1/openapi.json").json()["components"]["schemas"]
    job = schemas["JobIn"]
    assert set(job["discriminator"]["mapping"]) == set(JobKind.values)
    assert "model_path" in schemas["DiskParams"]["required"]
    assert schemas["DiskParams"]["additionalProperties"] is False
    assert "group" in schemas["DistributedParams"]["required"]


@pytest.mark.parametrize(
    ("kind", "params", "field"),
    [
        ("update_weights_from_disk", {}, "params.model_path"),
        ("update_weights_from_disk", {"model_path": "/m", "token_step": 0}, "params.token_step"),
        ("update_weights_from_disk", {"model_path": "/m", "timeout_s": "5"}, "params.timeout_s"),
        ("update_weights_from_tensor", {"uploads": ["x"]}, "params.uploads.0"),
        ("update_weights_from_distributed", {"group": {}}, "params.group.master_address"),
        ("release_memory", {"tags": []}, "params.tags"),
        ("repair", {"now": True}, "params.now"),
        ("pause_generation", {"timeout_s": 5}, "params.timeout_s"),
        ("abort_requests", {}, "params"),
    ],
)
def test_a_bad_field_is_named_by_its_path(post, engine, kind, params, field):
    document = problem(post({"engine": "local", "kind": kind, "params": params}), 422)
    assert next(one["field"] for one in document["errors"]) == field
    assert not Job.objects.exists()


def test_an_abort_is_not_held_up_and_holds_nothing_up(post, engine):
    waiting = post({"engine": "local", "kind": "flush_cache"}).json()
    abort = {"engine": "local", "kind": "abort_requests", "params": {"abort_all": True}}
    first, second = post(abort), post(abort)
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json()["phase"] == "queued"
    refused = problem(post({"engine": "local", "kind": "repair"}), 409)
    assert refused["holder"] == waiting["id"]


def test_no_extension_or_harsher_mode_for_what_takes_effect_at_once(post, engine):
    job = post({"engine": "local", "kind": "repair"}).json()
    problem(post({"by_s": 5}, path=job["links"]["extend"]), 409, "at once")
    problem(post({}, path=job["links"]["force"]), 409, "at once")


def test_a_dry_run_creates_nothing_and_says_what_it_would_do(post, engine, seen, valkey):
    seen(running=3)
    body = {"engine": "local", "kind": "flush_cache", "params": {"mode": "abort"}}
    answer = post(body, path="/api/v1/jobs?dry_run=true")
    assert answer.status_code == 200, answer.content
    plan = answer.json()
    assert plan["dry_run"] is True
    assert plan["would_be_accepted"] is True
    assert plan["cache_lost"] == [{"tier": "l1", "tokens": 2 * 30 * 16}]
    assert plan["at_risk"] == {"lost": 3, "restarted": 0, "finish_first": 0, "holds_new": True}
    assert plan["pause_s"] is None
    assert plan["recompute_rank_s"] is None  # no rank ever prefilled
    assert plan["can_be_undone"] is False
    assert not Job.objects.exists()
    assert not AuditEntry.objects.filter(action__startswith="job").exists()
    problem(post(body, path="/api/v1/jobs?dry_run=perhaps"), 422, "dry_run")
    problem(post({**body, "engine": "nowhere"}, path="/api/v1/jobs?dry_run=1"), 404)


def test_a_dry_run_says_what_would_be_refused(post, engine, seen, valkey):
    seen(proven=False)
    holder = post({"engine": "local", "kind": "flush_cache"}).json()
    body = {
        "engine": "local",
        "kind": "update_weights_from_tensor",
        "params": {"uploads": ["0" * 64]},
    }
    plan = post(body, path="/api/v1/jobs?dry_run=true").json()
    assert plan["would_be_accepted"] is False
    codes = {one["code"]: one for one in plan["refusals"]}
    assert set(codes) == {"rank_not_ready", "operation_pending", "invalid"}
    assert codes["operation_pending"]["holder"] == holder["id"]
    assert Job.objects.count() == 1


def test_a_file_is_uploaded_in_pieces_and_named_by_a_job(api, post, engine):
    begun = post({"name": "w.safetensors", "size_bytes": len(FILE)}, path="/api/v1/uploads")
    assert begun.status_code == 201
    path = begun["Location"]
    options = {"content_type": "application/octet-stream"}
    half = api.generic("PATCH", f"{path}?offset=0", FILE[:20], **options).json()
    assert (half["offset"], half["sha256"]) == (20, None)
    lost = problem(api.generic("PATCH", f"{path}?offset=0", FILE, **options), 409)
    assert lost["offset"] == 20
    assert api.get(path).json()["offset"] == 20
    done = api.generic("PATCH", f"{path}?offset=20", FILE[20:], **options).json()
    digest = hashlib.sha256(FILE).hexdigest()
    assert (done["sha256"], done["num_tensors"]) == (digest, 1)
    assert [one["sha256"] for one in api.get("/api/v1/uploads").json()["items"]] == [digest]
    job = {"engine": "local", "kind": "update_weights_from_tensor", "params": {"uploads": [digest]}}
    assert post(job).status_code == 202
    problem(api.delete(path), 409, "needs this file")
    known = {"name": "w.safetensors", "size_bytes": len(FILE), "sha256": digest}
    assert post(known, path="/api/v1/uploads").status_code == 200


def test_a_bad_upload_is_refused_and_named(api, post, engine):
    document = problem(send(api, b"\x80\x04\x95" + b"pickle" * 10), 422)
    assert "not a whole safetensors file" in document["detail"]
    for bad in ({"name": "w.pt", "size_bytes": 100}, {"name": "w.safetensors", "size_bytes": -1}):
        problem(post(bad, path="/api/v1/uploads"), 422)
    begun = post({"name": "w.safetensors", "size_bytes": 100}, path="/api/v1/uploads")
    problem(api.patch(f"{begun['Location']}?offset=0", {}, content_type="application/json"), 415)
    problem(api.patch(begun["Location"], b"x", content_type="application/octet-stream"), 422)


def test_a_browser_uploads_with_its_token_only(browser, engine):
    body = {"name": "w.safetensors", "size_bytes": len(FILE)}
    path = "/api/v1/uploads"
    problem(browser.post(path, body, content_type="application/json"), 403)
    headers = {"X-CSRFToken": browser.csrf}
    begun = browser.post(path, body, content_type="application/json", headers=headers)
    assert begun.status_code == 201
    piece = {"content_type": "application/octet-stream"}
    url = f"{begun['Location']}?offset=0"
    problem(browser.generic("PATCH", url, FILE, **piece), 403)
    assert browser.generic("PATCH", url, FILE, headers=headers, **piece).json()["sha256"]


def test_checkpoints_are_told_by_the_engine(api, fake_engine, db):
    engine_register(
        name=fake_engine.name,
        control_address=fake_engine.control_address,
        events_address=fake_engine.events_address,
        actor=Actor.system("test"),
    )
    url = f"/api/v1/engines/{fake_engine.name}/checkpoints"
    found = api.get(url).json()
    assert found["roots"] == [{"label": "models", "path": "/srv/models"}]
    assert [one["name"] for one in found["checkpoints"]] == ["v1", "v2"]
    (one,) = api.get(url, {"path": "/srv/models/v9"}).json()["checkpoints"]
    assert one["problem"] == "there is no such folder"
    fake_engine.stop()
    problem(api.get(url), 503, "engine_unreachable")
    problem(api.get("/api/v1/engines/nowhere/checkpoints"), 404)


def test_an_engine_tells_what_it_serves(api, engine, seen, valkey):
    seen()
    view = api.get("/api/v1/engines/local").json()
    assert {"weights", "weights_roots", "paused", "released", "needs_weights"} <= set(view)
    assert view["ranks"][0]["weight_checksum"] == rank_view(0).weight_checksum


@pytest.mark.parametrize(
    ("kind", "released", "accepted"),
    [
        ("release_memory", [], True),
        ("release_memory", ["kv_cache"], False),
        ("resume_memory", [], False),
        ("resume_memory", ["kv_cache", "weights"], True),
    ],
)
def test_a_dry_run_knows_which_memory_is_released(
    post, engine, seen, valkey, kind, released, accepted
):
    seen(released=released)
    body = {"engine": engine.name, "kind": kind, "params": GOOD[kind], "reason": "r"}
    plan = post({**body, "params": {}}, path="/api/v1/jobs?dry_run=true").json()
    assert plan["would_be_accepted"] is accepted, plan["refusals"]

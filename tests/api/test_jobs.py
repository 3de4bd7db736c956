"""POST and GET of jobs: shapes, refusals, hostile bodies, pages."""

from __future__ import annotations

import json
import uuid

import pytest

from console.choices import OnConflict
from console.models import Job
from console.services.job_control import job_cancel

pytestmark = pytest.mark.django_db

FIELDS = {
    *("id", "engine", "kind", "params", "state", "phase", "reason", "requested_by", "via"),
    *("created_at", "started_at", "finished_at", "deadline_at", "ranks", "error"),
}


def problem(answer, status, word=""):
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/problem+json"
    document = json.loads(answer.content, parse_constant=lambda name: pytest.fail(name))
    assert document["status"] == status
    assert {"type", "title", "detail", "code", "instance", "request_id"} <= set(document)
    assert word in json.dumps(document)
    return document


def test_a_job_is_accepted_with_its_place_and_shape(post, engine, api):
    answer = post({"engine": engine.name, "kind": "flush_cache", "reason": "new weights soon"})
    assert answer.status_code == 202
    job = answer.json()
    assert answer["Location"] == job["links"]["self"] == f"/api/v1/jobs/{job['id']}"
    assert set(job) >= FIELDS | {"links", "version"}
    assert job["params"] == {"timeout_s": 60.0, "mode": "wait", "empty_cache": True}
    assert (job["state"], job["phase"], job["engine"]) == ("accepted", "queued", "local")
    assert (job["requested_by"], job["via"], job["reason"]) == ("ana", "api", "new weights soon")
    assert api.get(answer["Location"]).json() == job


def test_the_openapi_document_is_3_1_and_names_no_other_host(client):
    document = client.get("/api/v1/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert set(document["paths"]) >= {
        "/api/v1/engines",
        "/api/v1/engines/{name}",
        "/api/v1/jobs",
        "/api/v1/jobs/{job_id}",
        "/api/v1/jobs/{job_id}/cancel",
        "/api/v1/jobs/{job_id}/extend",
        "/api/v1/jobs/{job_id}/force",
        "/api/v1/audit",
    }
    page = client.get("/api/v1/docs").content.decode()
    assert "http://" not in page
    assert "https://" not in page


@pytest.mark.parametrize(
    "timeout",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e400",
        "-1",
        "-0.001",
        '"x"',
        '"5"',
        "true",
        "null",
        "86400.5",
        "[]",
        "{}",
        "1" + "0" * 400,
    ],
)
def test_a_bad_timeout_is_422_and_names_the_field(post, engine, timeout):
    raw = '{"engine": "local", "kind": "flush_cache", "params": {"timeout_s": ' + timeout + "}}"
    problem(post(raw=raw), 422, "timeout_s")
    assert not Job.objects.exists()


@pytest.mark.parametrize("mode", ["drain", "retract", "abort"])
def test_timeout_0_with_drain_is_422(post, mode):
    body = {
        "engine": "local",
        "kind": "flush_cache",
        "params": {"timeout_s": 0, "mode": mode},
    }
    problem(post(body), 422, "timeout_s")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"unknown": 1}, "unknown"),
        ({"params": {"timeout": 5}}, "timeout"),
        ({"kind": "reboot"}, "kind"),
        ({"params": {"mode": "gentle"}}, "mode"),
        ({"params": {"mode": "WAIT"}}, "mode"),
        ({"params": {"empty_cache": "yes"}}, "empty_cache"),
        ({"params": {"empty_cache": 1}}, "empty_cache"),
        ({"params": []}, "params"),
        ({"on_conflict": "wait"}, "on_conflict"),
        ({"reason": "x" * 501}, "reason"),
        ({"reason": "a\x00b"}, "reason"),
        ({"reason": 5}, "reason"),
        ({"engine": ["local"]}, "engine"),
        ({"engine": "a\x00"}, "engine"),
        ({"kind": None}, "kind"),
    ],
)
def test_a_bad_field_is_422_and_named(post, change, word):
    problem(post({"engine": "local", "kind": "flush_cache", **change}), 422, word)
    assert not Job.objects.exists()


def test_an_unknown_engine_is_404(post):
    problem(post({"engine": "nowhere", "kind": "flush_cache"}), 404, "nowhere")


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"{", "JSON"),
        (b"\xff\xfe", "UTF-8"),
        (b'{"engine": "\xff"}', "UTF-8"),
        (b"[" * 100_000, "nested"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "nested"),
        (b'{"n": ' + b"9" * 5000 + b"}", "long"),
        (b'{"engine": "a", "engine": "local", "kind": "flush_cache"}', "twice"),
        (b'{"reason": "\\ud800"}', "surrogate"),
        (b'"just text', "JSON"),
    ],
)
def test_an_unreadable_body_is_400(post, raw, word):
    problem(post(raw=raw), 400, word)


@pytest.mark.parametrize("raw", [b"[]", b'"text"', b"5", b"null", b""])
def test_a_body_that_is_no_object_is_refused(post, raw):
    assert post(raw=raw).status_code in (400, 422)


def test_a_body_over_the_limit_is_413(post):
    problem(post(raw=b'{"reason": "' + b"x" * (1 << 20) + b'"}'), 413, "large")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/nowhere", 404),
        ("GET", "/api/nowhere", 404),
        ("GET", "/api/v1/jobs/not-a-uuid", 404),
        ("GET", f"/api/v1/jobs/{uuid.uuid4()}", 404),
        ("POST", f"/api/v1/jobs/{uuid.uuid4()}/cancel", 404),
        ("DELETE", "/api/v1/jobs", 405),
        ("PUT", "/api/v1/audit", 405),
        ("GET", "/api/v1/jobs?limit=5", 422),
        ("GET", "/api/v1/jobs?cursor=nonsense", 422),
        ("GET", "/api/v1/jobs?cursor=YXxi", 422),
        ("GET", "/api/v1/jobs?state=odd", 422),
        ("GET", "/api/v1/jobs?engine=nowhere", 404),
        ("GET", "/api/v1/audit?cursor=%ff", 422),
        ("GET", "/api/v1/audit?job=1", 422),
        ("GET", "/api/v1/engines/nowhere", 404),
        ("GET", "/api/v1/engines?x=1", 422),
        ("GET", f"/api/v1/jobs/{uuid.uuid4()}?wait_s=nan", 422),
        ("GET", f"/api/v1/jobs/{uuid.uuid4()}?wait_s=61", 422),
    ],
)
def test_every_error_is_a_problem_document(api, method, path, status):
    answer = api.generic(method, path)
    problem(answer, status)
    if status == 405:
        assert answer["Allow"]


def test_a_bad_host_and_a_fault_are_problem_documents(api, monkeypatch):
    problem(api.get("/api/v1/jobs", headers={"host": "evil.example"}), 400)
    monkeypatch.setattr("api.routers.jobs.job_list", lambda **_: 1 / 0)
    document = problem(api.get("/api/v1/jobs"), 500)
    assert "ZeroDivision" not in json.dumps(document)


def test_the_same_key_gives_the_same_job_and_another_body_is_422(post, engine):
    key = {"Idempotency-Key": "k-1"}
    first = post(headers=key)
    again = post(headers=key)
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["id"] == again.json()["id"]
    assert again["Location"] == first["Location"]
    other = {"engine": engine.name, "kind": "flush_cache", "reason": "other"}
    problem(post(other, headers=key), 422, "idempotency_key_reused")
    refused = problem(post(headers={"Idempotency-Key": "k-2"}), 409)
    assert refused["holder"] == first.json()["id"]
    assert 0 < refused["remaining_s"] <= 60
    for bad in ("", "a b", "x" * 201, "é"):
        problem(post(headers={"Idempotency-Key": bad}), 422, "Idempotency-Key")


def test_lists_are_newest_first_50_a_page_with_constant_queries(
    api, ask, django_assert_max_num_queries
):
    ids = [str(ask(on_conflict=OnConflict.QUEUE).pk) for _ in range(120)][::-1]
    seen, cursor, pages = [], None, 0
    while pages == 0 or cursor:
        with django_assert_max_num_queries(6):
            page = api.get("/api/v1/jobs", {"cursor": cursor} if cursor else {}).json()
        seen += [job["id"] for job in page["items"]]
        cursor, pages = page["next_cursor"], pages + 1
    assert seen == ids
    assert pages == 3
    assert len(api.get("/api/v1/jobs?engine=local&state=succeeded").json()["items"]) == 0


def test_the_audit_is_listed_newest_first_with_its_text(api, post):
    job = post().json()
    page = api.get("/api/v1/audit?action=job.").json()
    assert set(page) == {"items", "next_cursor"}
    entry = page["items"][0]
    assert (entry["action"], entry["job"], entry["actor"]) == ("job.accepted", job["id"], "ana")
    assert entry["body"]["actor"]["token"].startswith("qsc_")
    assert entry["body"]["reason"] == ""
    assert json.loads(entry["body_text"]) == entry["body"]
    only = api.get("/api/v1/audit?action=job.", {"job": job["id"]}).json()["items"]
    assert [one["action"] for one in only] == ["job.accepted"]


def test_an_engine_never_seen_is_offline_and_unknown(api, engine):
    view = api.get("/api/v1/engines/local").json()
    assert view["online"] is False
    assert view["idle"] is None
    assert view["ranks"] == []
    assert view["note"]
    assert [one["name"] for one in api.get("/api/v1/engines").json()["items"]] == ["local"]


def test_cancel_extend_and_force_of_an_unsent_job(api, post):
    job = post().json()
    links = job["links"]
    longer = post({"by_s": 30}, path=links["extend"]).json()
    assert longer["deadline_at"] > job["deadline_at"]
    for body in ({"by_s": "5"}, {}, {"by_s": 1, "x": 2}):
        problem(post(body, path=links["extend"]), 422)
    problem(post(raw='{"by_s": NaN}', path=links["extend"]), 422, "by_s")
    assert post({}, path=links["force"]).json()["mode"] == "drain"
    problem(post({"now": True}, path=links["force"]), 422, "now")
    ended = post({"reason": "enough"}, path=links["cancel"]).json()
    assert (ended["state"], ended["phase"]) == ("cancelled", None)
    problem(post({}, path=links["cancel"]), 409, "job_finished")


def test_security_headers_are_on_every_answer(api, client):
    for answer in (
        api.get("/api/v1/jobs"),
        api.get("/api/v1/nowhere"),
        client.get("/login"),
        client.get("/nowhere"),
        client.get("/healthz"),
    ):
        assert answer["X-Content-Type-Options"] == "nosniff"
        assert answer["Referrer-Policy"] == "same-origin"
        assert answer["X-Frame-Options"] == "DENY"
        assert "script-src 'self'" in answer["Content-Security-Policy"]
        assert answer["Cross-Origin-Opener-Policy"] == "same-origin"
        assert answer["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "no-store" in answer["Cache-Control"] or "no-cache" in answer["Cache-Control"]
        assert answer["X-Request-Id"]


def test_the_list_is_filtered_by_kind_asker_time_and_openness(api, ask, ana):
    first = ask()
    job_cancel(job_id=first.pk, actor=ana)
    second = ask(kind="pause_generation")

    def found(**query):
        answer = api.get("/api/v1/jobs", query)
        assert answer.status_code == 200, answer.content
        return [item["id"] for item in answer.json()["items"]]

    both = [str(second.pk), str(first.pk)]
    assert found() == found(actor="ana") == both
    assert found(kind="flush_cache") == found(state="cancelled") == [str(first.pk)]
    assert found(open="true") == [str(second.pk)]
    assert found(actor="nobody") == found(kind="repair") == []
    at = second.created_at.isoformat()
    assert found(since=at) == [str(second.pk)]
    assert found(until=at) == [str(first.pk)]
    for wrong in ({"kind": "x"}, {"since": "2026-01-01"}, {"actor": "\x00"}, {"color": "red"}):
        assert api.get("/api/v1/jobs", wrong).status_code == 422, wrong

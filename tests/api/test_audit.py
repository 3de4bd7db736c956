"""The audit log over REST: search, one entry, head, check, export."""

from __future__ import annotations

import csv
import io
import json

import pytest

from console.models import AuditEntry
from console.services.audit_anchor import audit_anchor
from tests.console.audit.conftest import audit_files
from tests.console.audit.exports import Files
from tests.console.audit.test_check import by_force

__all__ = ["audit_files"]

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("audit_files")]


@pytest.fixture
def job(ask):
    """A job of ana's."""
    return ask()


def search(api, **query):
    answer = api.get("/api/v1/audit", query)
    assert answer.status_code == 200, answer.content
    return [item["action"] for item in answer.json()["items"]]


def test_each_field_is_searched_by_the_database(api, job):
    job_id = str(job.pk)
    entry = AuditEntry.objects.get(action="job.accepted")
    for query in (
        {"job": job_id},
        {"engine": "local", "actor": "ana"},
        {"kind": "flush_cache"},
        {"action": "job.accepted"},
        {"action": "job."},
        {"since": entry.created_at.isoformat(), "kind": "flush_cache"},
    ):
        assert search(api, **query) == ["job.accepted"], query
    assert search(api, until=entry.created_at.isoformat(), kind="flush_cache") == []
    assert search(api, kind="repair") == []
    assert search(api, result="recorded", via="api", action="audit.read") == ["audit.read"]


def test_a_token_and_a_request_are_found(api, post, token):
    made = post()
    found = api.get("/api/v1/audit", {"token": token[:12], "action": "job."}).json()["items"]
    assert [item["job"] for item in found] == [made.json()["id"]]
    by_request = api.get("/api/v1/audit", {"request": made["X-Request-Id"]}).json()["items"]
    assert [item["action"] for item in by_request] == ["job.accepted"]


@pytest.mark.parametrize(
    "query",
    [
        {"job": "x"}, {"since": "yesterday"}, {"since": "2026-01-01T00:00:00"}, {"via": "fax"},
        {"actor": "a" * 151}, {"engine": "a\x00b"}, {"color": "red"}, {"cursor": "x"},
    ],
)  # fmt: skip
def test_a_search_that_means_nothing_is_refused(api, query):
    assert api.get("/api/v1/audit", query).status_code == 422


def test_one_entry_has_its_bytes_and_its_hash(api, job):
    entry = AuditEntry.objects.get(action="job.accepted")
    found = api.get(f"/api/v1/audit/{entry.seq}").json()
    assert found["body_text"] == entry.body and found["hash"] == entry.hash
    for seq in ("0", "999999", "-1", "9" * 30, "x"):
        assert api.get(f"/api/v1/audit/{seq}").status_code in (404, 422)


def test_the_head_and_a_check_of_the_log(api, job):
    audit_anchor()
    verdict = api.get("/api/v1/audit/verify?full=true").json()
    assert verdict["ok"] and verdict["verified_to"] == verdict["head"] == verdict["anchored_to"]
    head = api.get("/api/v1/audit/head").json()
    newest = AuditEntry.objects.order_by("-seq").first()
    assert (head["seq"], head["hash"]) == (newest.seq, newest.hash)
    assert head["anchored_seq"] == verdict["anchored_to"] and len(head["public_key"]) == 64
    by_force("UPDATE console_auditentry SET engine_name = 'other' WHERE engine_name = 'local'")
    verdict = api.get("/api/v1/audit/verify?full=true").json()
    assert not verdict["ok"] and "engine_name" in verdict["fault"]


def test_an_export_verifies_and_holds_its_own_entry(api, job, settings, tmp_path):
    answer = api.get("/api/v1/audit/export", {"engine": "local"})
    content = b"".join(answer.streaming_content)
    assert answer["Content-Type"] == "application/x-ndjson"
    path = tmp_path / "export.jsonl"
    path.write_bytes(content)
    key = settings.AUDIT_KEY_FILE.with_suffix(".pub")
    done = Files(path, settings.AUDIT_ANCHORS_FILE, key).verify()
    assert done.returncode == 0, done.stdout
    newest = AuditEntry.objects.order_by("-seq").first()
    body = json.loads(newest.body)
    assert (body["action"], body["filter"]) == ("audit.exported", "engine=local")
    assert f"1 to {newest.seq}, 2 shown" in done.stdout  # the engine's, the job's


def test_csv_is_for_spreadsheets_and_holds_no_formula(api, job, engine, ask):
    by_force("UPDATE console_auditentry SET actor_name = '=HYPERLINK(1)' WHERE engine_name != ''")
    answer = api.get("/api/v1/audit/export", {"form": "csv"})
    rows = list(csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode())))
    assert len(rows) == AuditEntry.objects.count()
    assert {row["actor"] for row in rows if row["engine"]} == {"'=HYPERLINK(1)"}


def test_readings_are_noted_once_an_hour_and_asker(api):
    for _ in range(3):
        search(api)
    assert AuditEntry.objects.filter(action="audit.read").count() == 1


def test_without_its_key_nothing_is_exported(api, settings):
    settings.AUDIT_KEY_FILE.unlink()
    answer = api.get("/api/v1/audit/export")
    assert (answer.status_code, answer.json()["code"]) == (503, "audit_unavailable")
    assert not AuditEntry.objects.filter(action="audit.exported").exists()

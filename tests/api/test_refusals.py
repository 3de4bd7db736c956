"""D03: what was denied or refused is on record too; what cannot be recorded is not done."""

from __future__ import annotations

import json

import pytest
from django.db import connection
from django.test import Client

from console.models import AuditEntry, Job

pytestmark = pytest.mark.django_db


def newest():
    entry = AuditEntry.objects.order_by("-seq").first()
    return entry, json.loads(entry.body)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"engine": "local", "kind": "flush_cache", "timeout_s": "soon"}, 422, "invalid"),
        ({"engine": "nowhere", "kind": "flush_cache"}, 404, "engine_not_found"),
        ({"engine": "local"}, 422, "invalid"),
    ],
)
def test_a_request_that_is_refused_is_one_entry(post, token, body, status, code):
    before = AuditEntry.objects.count()
    answer = post(body)
    assert answer.status_code == status
    entry, facts = newest()
    assert AuditEntry.objects.count() == before + 1
    assert (entry.action, entry.result) == ("request.refused", "refused")
    assert (entry.actor_name, entry.token_prefix) == ("ana", token[:12])
    assert facts["code"] == code and facts["status"] == status
    assert entry.request_id == answer["X-Request-Id"]
    assert facts["object"] == "POST api/v1/jobs"
    assert "soon" not in entry.body  # what was sent is not repeated


def test_a_job_that_is_held_up_and_a_finished_one_are_entries(post, api, engine):
    post()
    assert post().status_code == 409
    entry, facts = newest()
    assert (entry.result, facts["code"]) == ("refused", "operation_pending")
    Job.objects.update(state="succeeded", phase=None)
    job = Job.objects.get()
    answer = api.post(f"/api/v1/jobs/{job.pk}/cancel", {}, content_type="application/json")
    assert answer.status_code == 409
    entry, facts = newest()
    assert facts["named"] == {"job_id": str(job.pk)} and facts["code"] == "job_finished"


def test_strangers_are_noted_once_a_minute_with_a_count(engine):
    client = Client(headers={"authorization": "Bearer qsc_00000000_" + "x" * 32})
    before = AuditEntry.objects.count()
    for _ in range(20):
        answer = client.post("/api/v1/jobs", {}, content_type="application/json")
        assert answer.status_code == 401
    assert AuditEntry.objects.count() == before + 1
    entry, facts = newest()
    assert (entry.result, entry.actor_name) == ("denied", "anonymous")
    assert facts["actor"]["ip"] == "127.0.0.1" and facts["left_out"] == 0


def test_a_form_without_its_csrf_token_is_an_entry(browser):
    answer = browser.post("/flush", {"engine": "local"})
    assert answer.status_code == 403
    entry, facts = newest()
    assert (entry.action, entry.actor_name, facts["object"]) == (
        "request.denied", "ana", "POST flush",
    )  # fmt: skip


def test_a_stranger_who_posts_a_form_is_an_entry(db):
    answer = Client().post("/jobs/00000000-0000-4000-8000-000000000000/cancel")
    assert answer.status_code == 302
    entry, facts = newest()
    assert (entry.action, entry.actor_name, facts["status"]) == ("request.denied", "anonymous", 302)


def test_reading_leaves_no_entry_of_a_refusal(api):
    before = AuditEntry.objects.count()
    assert api.get("/api/v1/jobs?color=red").status_code == 422
    assert AuditEntry.objects.count() == before


def broken():
    """No entry can be written any more."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TRIGGER no_more BEFORE INSERT ON console_auditentry"
            " BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
        )


def test_nothing_is_accepted_or_refused_without_its_entry(post, api, browser, engine):
    broken()
    for body in (None, {"engine": "local"}):
        answer = post(body)
        assert answer.status_code == 503, answer.content
        assert answer["Content-Type"] == "application/problem+json"
    assert not Job.objects.exists()
    assert browser.post("/flush", {"engine": "local"}).status_code == 503


# ---- people come and go ------------------------------------------------------------------------


def log_in(name, password):
    client = Client()
    return client, client.post("/login", {"username": name, "password": password})


def test_log_ins_and_log_outs_are_entries(user):
    client, answer = log_in("ana", "a-long-enough-password")
    assert answer.status_code == 302
    entry, _ = newest()
    assert (entry.action, entry.actor_name, entry.via) == ("session.opened", "ana", "ui")
    client.post("/logout")
    assert newest()[0].action == "session.closed"


def test_a_wrong_password_is_an_entry_and_a_password_typed_as_a_name_is_not_kept(user):
    log_in("ana", "wrong")
    entry, facts = newest()
    assert (entry.action, entry.result) == ("session.refused", "denied")
    assert facts["object"] == "session of ana"
    log_in("my-secret-password-9", "x")
    entry, facts = newest()
    assert facts["object"] == "session of nobody known"
    for model in connection.introspection.table_names():
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {model}")
            assert "my-secret-password-9" not in repr(cursor.fetchall()), model


def test_nobody_logs_in_off_the_record(user):
    broken()
    client, answer = log_in("ana", "a-long-enough-password")
    assert answer.status_code == 503
    assert client.get("/").status_code == 302


def test_ten_wrong_passwords_lock_the_pair_out_and_nobody_else(user):
    for _ in range(9):
        assert log_in("ana", "wrong")[1].status_code == 200
    assert log_in("ana", "wrong")[1].status_code == 429
    _, answer = log_in("ana", "a-long-enough-password")
    assert answer.status_code == 429 and answer["Retry-After"] == "900"
    other = Client(REMOTE_ADDR="10.0.0.9")
    answer = other.post("/login", {"username": "ana", "password": "a-long-enough-password"})
    assert answer.status_code == 302

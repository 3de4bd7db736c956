"""Who may see pages, what is refused, and how: in the look, without leaking."""

from __future__ import annotations

import re
import uuid

import pytest
from django.db import OperationalError
from django.test import Client, RequestFactory
from django.urls import get_resolver, reverse

from console.models import AuditEntry, Job
from console.pages.shell import page as page_view
from tests.console.conftest import PASSWORD

JOB = "/jobs/00000000-0000-4000-8000-000000000000"
PAGES = [
    "/",
    "/engines/local",
    "/flush",
    "/jobs",
    JOB,
    "/audit",
    "/audit/1",
    "/palette",
    "/flush/plan",
]


@pytest.mark.parametrize("path", PAGES)
def test_nobody_logged_in_is_sent_to_the_log_in_and_back(client, db, path):
    answer = client.get(path)
    assert answer.status_code == 302
    assert answer["Location"] == f"/login?next={path}"


@pytest.mark.parametrize("act", ["cancel", "extend", "force"])
def test_a_job_is_steered_by_post_only_and_by_people_only(client, page, db, act):
    assert page.get(f"{JOB}/{act}").status_code == 405
    assert page.post(f"{JOB}/{act}").status_code == 404
    page.logout()
    assert client.post(f"{JOB}/{act}").status_code == 302


def test_reading_pages_refuse_to_be_posted_to(page, engine):
    for path in ("/", "/engines/local", "/jobs", "/audit", "/palette"):
        assert page.post(path).status_code == 405, path


@pytest.mark.parametrize(
    "path", ["/engines/nobody", JOB, "/audit/999999", "/jobs/not-a-uuid", "/audit/x", "/nowhere"]
)
def test_what_is_not_there_is_a_404_in_the_look(page, db, path):
    answer = page.get(path)
    assert answer.status_code == 404
    text = answer.content.decode()
    assert "Nothing was changed by this request" in text
    assert "nav-main" in text


def test_a_stranger_sees_a_404_without_the_header(client, db):
    answer = client.get("/nowhere")
    assert answer.status_code == 404
    assert b"nav-main" not in answer.content


@pytest.mark.parametrize(
    "path",
    [
        "/jobs?cursor=%00",
        "/jobs?state=odd",
        "/flush/plan?mode=x",
    ],
)
def test_a_bad_question_is_a_422_that_says_what_is_bad(page, engine, path):
    answer = page.get(path)
    assert answer.status_code == 422
    assert b"Invalid request" in answer.content


def test_a_form_without_its_proof_is_refused_in_the_look(user, engine):
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(user)
    for path in ("/flush", f"{JOB}/cancel", "/logout", "/engines/local/try"):
        answer = strict.post(path, {"reason": "x"})
        assert answer.status_code == 403, path
        assert b"not valid any more" in answer.content
    assert not Job.objects.exists()


VALUES = {
    "job_id": uuid.UUID(int=0),
    "upload_id": uuid.UUID(int=0),
    "seq": 1,
    "grant_id": 1,
    "prefix": "a" * 8,
    "kind": "pause_generation",
}


def every_page():
    """(name, path) of every URL that is no part of the API; what is there is no matter."""
    for pattern in get_resolver().url_patterns:
        if str(pattern.pattern).startswith(("api/", "django-admin/")):
            continue
        for inner in getattr(pattern, "url_patterns", [pattern]):
            names = re.findall(r"\(\?P<(\w+)>|<(?:\w+:)?(\w+)>", str(inner.pattern))
            kwargs = {name: VALUES.get(name, "local") for pair in names for name in pair if name}
            yield inner.name, reverse(inner.name, kwargs=kwargs)


def test_no_page_takes_anything_without_a_proof(user, engine):
    """S08: a log-in alone is none, nor is the proof of another session."""
    strict, other = Client(enforce_csrf_checks=True), Client()
    strict.get("/login")
    other.get("/login")
    strict.force_login(user)
    paths = dict(every_page())
    assert len(paths) > 40
    for name, path in paths.items():
        for proof in ("", other.cookies["quiesce_csrf"].value):
            answer = strict.post(path, {"reason": "x", "csrfmiddlewaretoken": proof})
            assert answer.status_code == 403, name
    assert not Job.objects.exists()


def test_log_in_and_log_out(client, user):
    assert client.get("/login").status_code == 200
    bad = client.post("/login", {"username": "ana", "password": "wrong"})
    assert bad.status_code == 200
    assert b'aria-invalid="true"' in bad.content
    assert b"wrong" not in bad.content
    good = client.post(
        "/login?next=/jobs", {"username": "ana", "password": PASSWORD, "next": "/jobs"}
    )
    assert (good.status_code, good["Location"]) == (302, "/jobs")
    assert client.get("/").status_code == 200
    assert client.get("/logout").status_code == 405
    assert client.post("/logout").status_code == 302
    assert client.get("/").status_code == 302


def test_log_in_does_not_send_to_another_site(client, user):
    target = "https://elsewhere.example/"
    answer = client.post("/login", {"username": "ana", "password": PASSWORD, "next": target})
    assert answer["Location"] == "/"


def test_every_page_carries_the_strict_policy_and_is_not_kept(page, engine):
    answer = page.get("/")
    policy = answer["Content-Security-Policy"]
    assert "script-src 'self'" in policy and "unsafe" not in policy
    assert answer["Cache-Control"] == "no-store"


def test_a_database_that_is_away_is_a_503_in_the_look(user, db):
    @page_view
    def broken(request):
        raise OperationalError("gone")

    request = RequestFactory().get("/")
    request.user = user
    answer = broken(request)
    assert answer.status_code == 503
    assert b"The database did not answer" in answer.content
    assert b"gone" not in answer.content


def test_reading_pages_writes_no_audit_entry_but_one_of_reading_the_log(page, engine, ask):
    job = ask()
    before = AuditEntry.objects.count()
    for path in ("/", "/engines/local", f"/jobs/{job.pk}", "/jobs", "/palette"):
        assert page.get(path).status_code == 200, path
    assert AuditEntry.objects.count() == before
    for path in ("/audit", "/audit/1", "/audit"):
        assert page.get(path).status_code == 200, path
    assert AuditEntry.objects.count() == before + 1


def test_the_palette_finds_by_every_word_and_runs_nothing(page, engine, ask):
    job = ask()
    text = page.get("/palette?q=").content.decode()
    for found in (
        "Needs you",
        "Engines",
        "Actions",
        "Places",
        f"/jobs/{job.pk}",
        "/flush?engine=local",
    ):
        assert found in text
    only = page.get(f"/palette?q=job+{str(job.pk)[-6:]}").content.decode()
    assert only.count('role="option"') == 1
    assert page.get("/palette?q=zzz").content.strip() == b""
    assert page.get(f"/palette?q={uuid.uuid4()}").content.strip() == b""

"""The audit page: its search box, its badge, an entry's chain, the check and the export."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from django.utils.html import escape

from console.exceptions import Invalid
from console.models import AuditEntry
from console.pages.audit_search import search_read, search_text
from console.selectors.audit import AuditFilter
from tests.console.audit.exports import Files, fill
from tests.console.audit.test_check import by_force

JOB = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def page(client, user):
    client.force_login(user)
    return client


def test_a_search_is_read_and_written_alike():
    text = "actor:ana engine:local result:denied since:2026-11-01"
    chosen = search_read(text)
    assert chosen == AuditFilter(
        actor="ana", engine="local", result="denied", since=datetime(2026, 11, 1, tzinfo=UTC)
    )
    assert search_read(search_text(chosen)) == chosen
    assert search_read('actor:"ana maria"').actor == "ana maria"
    assert search_read(JOB).job == UUID(JOB)
    assert (
        search_read("until:2026-11-01T10:00:00+02:00").until.isoformat().startswith("2026-11-01T08")
    )
    assert search_read("  ") == AuditFilter()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("color:red", "is no field"),
        ("ana", "such as actor:ana"),
        ("actor:ana actor:bob", "there twice"),
        ("actor:", "nothing stands behind"),
        ('actor:"ana', "not closed"),
        ("job:1", "job's id"),
        ("since:soon", "a day such as"),
        ("since:9999-12-31T23:59:59-12:00", "a day such as"),
        ("actor:\0", "at most"),
        ("a" * 401, "at most"),
    ],
)
def test_what_a_search_does_not_understand_is_said(text, why):
    with pytest.raises(Invalid, match=why):
        search_read(text)


@pytest.mark.django_db
def test_the_page_searches_and_keeps_the_search_in_its_links(page):
    fill(130)
    answer = page.get("/audit", {"q": "engine:engine-1 action:test."})
    text = answer.content.decode()
    assert answer.status_code == 200 and "engine-0" not in text and "engine-1" in text
    assert text.count("<tr id=") == 43
    every = page.get("/audit", {"q": "action:test."}).content.decode()
    assert every.count("<tr id=") == 50
    assert "q=action%3Atest.&amp;cursor=" in every
    assert "form=jsonl&amp;q=action%3Atest." in every
    wrong = page.get("/audit", {"q": "color:<b>"})
    assert wrong.status_code == 422 and escape("'color' is no field") in wrong.content.decode()
    assert page.get("/audit", {"q": "actor:nobody"}).content.decode().count("<tr id=") == 0
    for query in ({"cursor": "x"}, {"job": "1"}):
        assert page.get("/audit", query).status_code == 422


@pytest.mark.django_db
def test_the_check_is_asked_for_by_post_and_shown(page):
    fill(20, anchor_every=10)
    head = AuditEntry.objects.latest("seq").seq
    assert "Not checked yet" in page.get("/audit/verify").content.decode()
    answer = page.post("/audit/verify")
    assert (answer.status_code, answer["Location"]) == (303, "/audit/verify")
    text = page.get("/audit/verify").content.decode()
    assert "As it was written, to entry" in text and f"up to {head}" in text
    assert "Verified to" in page.get("/audit").content.decode()
    assert f"below the signed head {head}" in page.get("/audit/7").content.decode()
    by_force("UPDATE console_auditentry SET hash = %s WHERE seq = 12", "0" * 64)
    page.post("/audit/verify")
    text = page.get("/audit/verify").content.decode()
    assert "Broken at entry 12" in text and "The first bad sequence is 12." in text
    assert "broken" in page.get("/audit").content.decode()


@pytest.mark.django_db
def test_an_export_from_the_page_verifies(page, settings, tmp_path):
    fill(20)
    answer = page.get("/audit/export", {"form": "jsonl", "q": "engine:engine-1"})
    path = tmp_path / "export.jsonl"
    path.write_bytes(b"".join(answer.streaming_content))
    done = Files(path, settings.AUDIT_ANCHORS_FILE, settings.AUDIT_KEY_FILE.with_suffix(".pub"))
    assert "10 shown" in done.verify().stdout
    assert AuditEntry.objects.get(action="audit.exported").via == "ui"
    assert page.get("/audit/export", {"form": "pdf"}).status_code == 422

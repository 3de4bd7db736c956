"""The console's own check of the log: what is changed in the database is named."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from django.db import connection, transaction

from console.access import EVERYTHING
from console.actors import Actor
from console.chain import body_digest, entry_hash
from console.models import AuditCheck, AuditEntry
from console.services.audit_anchor import audit_anchor
from console.services.audit_check import audit_check
from console.services.users import user_create
from console.signing import Signer
from console.tasks.reconcile import Reconciler
from tests.console.audit.exports import fill
from tests.console.conftest import PASSWORD

pytestmark = pytest.mark.django_db


def by_force(sql, *values):
    """What the owner of the database can do: take the triggers away, change, put them back."""
    with transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
            triggers = cursor.fetchall()
            for name, _ in triggers:
                cursor.execute(f"DROP TRIGGER {name}")
            cursor.execute(sql, values)
            for _, text in triggers:
                cursor.execute(text)
        else:
            cursor.execute("ALTER TABLE console_auditentry DISABLE TRIGGER USER")
            cursor.execute(sql, values)
            cursor.execute("ALTER TABLE console_auditentry ENABLE TRIGGER USER")


def test_an_untouched_log_is_right_and_is_not_followed_twice(
    django_assert_max_num_queries,
):
    fill(30)
    audit_anchor()
    verdict = audit_check(rights=EVERYTHING)
    assert (verdict.head, verdict.verified_to, verdict.anchored_to) == (30, 30, 30)
    assert verdict.fault is None
    fill(5)
    with django_assert_max_num_queries(12):
        verdict = audit_check(rights=EVERYTHING)
    assert (verdict.verified_to, verdict.anchored_to, verdict.fault) == (35, 30, None)
    assert AuditCheck.objects.get().seq == 35


def test_an_empty_log_is_right():
    assert audit_check(rights=EVERYTHING).verified_to == 0


@pytest.mark.parametrize(
    ("sql", "values"),
    [
        ("UPDATE console_auditentry SET body = replace(body, 'ana', 'bob') WHERE seq = 12", ()),
        ("UPDATE console_auditentry SET hash = %s WHERE seq = 12", ("0" * 64,)),
        ("UPDATE console_auditentry SET actor_name = 'bob' WHERE seq = 12", ()),
        ("UPDATE console_auditentry SET token_prefix = '' WHERE seq = 12", ()),
        ("UPDATE console_auditentry SET result = 'succeeded' WHERE seq = 12", ()),
        ("UPDATE console_auditentry SET created_at = '2020-01-01 00:00:00' WHERE seq = 12", ()),
        ("DELETE FROM console_auditentry WHERE seq = 12", ()),
    ],
)
@pytest.mark.parametrize("was_checked", [False, True])
def test_a_changed_or_deleted_entry_is_named(sql, values, was_checked):  # D03
    fill(30)
    if was_checked:
        audit_check(rights=EVERYTHING)
    by_force(sql, *values)
    verdict = audit_check(rights=EVERYTHING, is_full=True)
    assert verdict.fault is not None and verdict.fault.seq == 12, verdict
    assert verdict.verified_to == 11
    fill(1)
    again = audit_check(rights=EVERYTHING)  # what was found is not forgotten
    assert again.fault == verdict.fault and again.verified_to == 11


def rechain(first):
    """All hashes from `first` on made anew, as one can who has the database and this code."""
    head = bytes.fromhex(AuditEntry.objects.get(seq=first - 1).hash)
    for entry in AuditEntry.objects.filter(seq__gte=first).order_by("seq"):
        head = entry_hash(head, entry.seq, body_digest(entry.body))
        by_force("UPDATE console_auditentry SET hash = %s WHERE seq = %s", head.hex(), entry.seq)


def test_only_a_signed_head_betrays_a_chain_made_anew():
    fill(30, anchor_every=10)
    body = AuditEntry.objects.get(seq=12).body.replace('"number":11', '"number":99')
    by_force("UPDATE console_auditentry SET body = %s WHERE seq = 12", body)
    rechain(12)
    verdict = audit_check(rights=EVERYTHING, is_full=True)
    assert verdict.fault is not None and verdict.fault.seq == 11
    assert "other entries were signed" in verdict.fault.why and verdict.anchored_to == 10


def test_a_tail_that_was_cut_is_betrayed_by_a_signed_head():
    fill(30, anchor_every=10)
    by_force("DELETE FROM console_auditentry WHERE seq > 25")
    verdict = audit_check(rights=EVERYTHING, is_full=True)
    assert verdict.fault is not None and verdict.fault.seq == 21
    assert "cut off" in verdict.fault.why and verdict.anchored_to == 20


def test_a_tail_that_was_cut_after_a_check_is_noticed_at_the_next_one():
    fill(30)
    audit_check(rights=EVERYTHING)
    by_force("DELETE FROM console_auditentry WHERE seq > 25")
    assert audit_check(rights=EVERYTHING).fault is not None


@pytest.mark.parametrize("how", ["edited", "removed"])
def test_anchors_that_were_touched_are_named(settings, how):
    fill(30, anchor_every=10)
    lines = settings.AUDIT_ANCHORS_FILE.read_bytes().splitlines(keepends=True)
    record = json.loads(lines[1])
    record["record"]["seq"] = 21
    lines[1:2] = [json.dumps(record).encode() + b"\n"] if how == "edited" else []
    settings.AUDIT_ANCHORS_FILE.write_bytes(b"".join(lines))
    verdict = audit_check(rights=EVERYTHING, is_full=True)
    assert verdict.fault is not None and "line 2 of the anchors was changed" in verdict.fault.why


def test_an_anchor_that_a_crash_left_unfinished_is_written_anew(settings):
    fill(10, anchor_every=10)
    with settings.AUDIT_ANCHORS_FILE.open("ab") as file:
        file.write(b'{"key":"00')
    fill(1)
    audit_anchor()
    verdict = audit_check(rights=EVERYTHING)
    assert (verdict.anchored_to, verdict.fault) == (11, None)


NO_ENTRY = ["garbage", "{}", "[]", "null", '{"at": 5}', "[" * 50_000, '{"actor": 5, "at": ""}']


def appended(body):
    """What somebody who can only insert can do: the next number, and a hash that follows."""
    head = AuditEntry.objects.order_by("-seq").first()
    following = entry_hash(bytes.fromhex(head.hash), head.seq + 1, body_digest(body)).hex()
    values = AuditEntry.objects.filter(pk=head.pk).values().get()
    values |= {"seq": head.seq + 1, "body": body, "hash": following}
    names = ", ".join(values)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO console_auditentry ({names}) VALUES ({', '.join(['%s'] * len(values))})",
            [str(value) if isinstance(value, datetime) else value for value in values.values()],
        )


@pytest.mark.parametrize("body", NO_ENTRY)
def test_what_no_console_wrote_is_a_fault_and_is_shown_as_it_is(client, body):
    admin = user_create(
        username="root", password=PASSWORD, roles=["admin"], actor=Actor.system("test")
    )
    fill(5)
    appended(body)
    seq = AuditEntry.objects.order_by("-seq").first().seq
    verdict = audit_check(rights=EVERYTHING, is_full=True)
    assert (verdict.fault.seq, verdict.fault.why) == (seq, "what is stored is no entry")
    client.force_login(admin)
    for path in ("/audit", f"/audit/{seq}", "/audit/verify", "/api/v1/audit"):
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.content[:500])
    assert client.get(f"/api/v1/audit/{seq}").json()["body_text"] == body


@pytest.mark.parametrize("record", [
    {"anchor": 1, "before": "0" * 64},
    {"anchor": 1, "before": "0" * 64, "seq": "x", "hash": "", "at": ""},
    {"anchor": 1, "before": "0" * 64, "seq": True, "hash": "", "at": ""},
    [],
])  # fmt: skip
def test_a_line_that_is_signed_and_no_anchor_is_a_fault(settings, record):
    fill(10, anchor_every=5)
    lines = settings.AUDIT_ANCHORS_FILE.read_bytes().splitlines(keepends=True)
    lines[0] = (Signer.new().sign(record) + "\n").encode()
    settings.AUDIT_ANCHORS_FILE.write_bytes(b"".join(lines))
    assert "line 1 of the anchors" in audit_check(rights=EVERYTHING).fault.why
    settings.AUDIT_ANCHORS_FILE.write_bytes(b"[" * 100_000 + b"\n")
    assert "line 1 of the anchors" in audit_check(rights=EVERYTHING).fault.why


def test_a_check_that_fails_stops_no_other_step_of_the_reconciler(monkeypatch):
    reconciler, done = Reconciler(), []
    monkeypatch.setattr(reconciler, "expire_overdue", lambda: 1 / 0)
    monkeypatch.setattr(reconciler, "check_audit", lambda: done.append("checked"))
    reconciler.run_pass()
    assert done == ["checked"]

"""The audit log: its bytes, its order, and that nothing can change it."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
import rfc8785
from django.db import DatabaseError, connection, transaction

from console.actors import Actor
from console.choices import AuditStage
from console.models import AuditEntry
from console.services.audit import audit_append, canonical

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def append(**facts):
    return audit_append(
        action="test.done",
        stage=AuditStage.NOTE,
        actor=Actor.system("test"),
        now=NOW,
        process="test",
        facts=facts,
    )


def test_the_bytes_of_an_entry_are_fixed():
    entry = append(n=7.5, big=2**60, word="e\u0301", none=None, list=[1, True])
    assert entry.body == (
        '{"action":"test.done","actor":{"id":null,"ip":"","name":"system:test","request":"",'
        '"token":"","via":"system"},"at":"2026-01-02T03:04:05.678901Z",'
        '"big":"1152921504606846976","engine":"","job":null,"list":[1,true],"n":"7.5",'
        '"none":null,"process":"test","stage":"note","v":1,"word":"\u00e9"}'
    )
    assert rfc8785.dumps(json.loads(entry.body)).decode() == entry.body


def test_canonical_keeps_no_float():
    assert canonical({"a": [0.1, {"b": float("inf")}]}) == {"a": ["0.1", {"b": "inf"}]}


def test_seq_has_no_gaps_also_after_a_rollback():
    first = append()
    with transaction.atomic():
        append()
        transaction.set_rollback(True)
    assert append().seq == first.seq + 1


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE console_auditentry SET body = 'x' WHERE seq = 1",
        "DELETE FROM console_auditentry",
        "INSERT OR REPLACE INTO console_auditentry SELECT * FROM console_auditentry WHERE seq=1",
        "REPLACE INTO console_auditentry SELECT * FROM console_auditentry WHERE seq = 1",
        "INSERT INTO console_auditentry SELECT seq + 7, v, body, created_at, action, stage,"
        " actor_name, engine_name, job_id FROM console_auditentry WHERE seq = 1",
        "UPDATE OR REPLACE console_auditentry SET seq = 1 WHERE seq = 2",
    ],
)
def test_an_entry_cannot_be_changed_removed_replaced_or_put_out_of_order(sql):  # D03
    append()
    append()
    before = list(AuditEntry.objects.order_by("seq").values())
    with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql)
    assert list(AuditEntry.objects.order_by("seq").values()) == before


def test_the_orm_can_neither_save_nor_delete_an_entry():  # D03
    entry = append()
    entry.body = "{}"
    for act in (entry.save, entry.delete, AuditEntry.objects.all().delete):
        with pytest.raises(DatabaseError), transaction.atomic():
            act()


@pytest.mark.django_db(transaction=False)
def test_an_entry_needs_its_act_s_transaction(settings):
    connection.in_atomic_block, kept = False, connection.in_atomic_block
    try:
        with pytest.raises(AssertionError, match="transaction"):
            append()
    finally:
        connection.in_atomic_block = kept

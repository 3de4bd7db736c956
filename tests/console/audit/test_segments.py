"""Retention: a segment is exported, signed, verified and removed, and the chain goes on."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction

from console.access import EVERYTHING
from console.actors import Actor
from console.clock import db_now
from console.exceptions import Conflict, Invalid
from console.models import AuditEntry, AuditSegment
from console.services.audit_check import audit_check
from console.services.audit_segment import audit_segment_close
from tests.console.audit.exports import Files, exported, fill
from tests.console.audit.test_check import by_force

pytestmark = pytest.mark.django_db
ACTOR = Actor.system("test")


@pytest.fixture
def archive(tmp_path):
    folder = tmp_path / "archive"
    folder.mkdir()
    return folder


def close(archive, upto):
    """Close the entries up to this one."""
    moment = AuditEntry.objects.get(seq=upto).created_at + timedelta(microseconds=1)
    return audit_segment_close(before=moment, folder=archive, actor=ACTOR)


def test_what_is_closed_is_a_file_that_verifies_and_the_rest_follows_on_it(archive, tmp_path):
    fill(50, anchor_every=10)
    made = close(archive, 30)
    assert (made.first, made.last) == (1, 30)
    path = archive / "audit-1-30.jsonl"
    assert path.stat().st_mode & 0o777 == 0o400
    assert AuditEntry.objects.order_by("seq").values_list("seq", flat=True)[0] == 31
    verdict = audit_check(rights=EVERYTHING, is_full=True)
    assert (verdict.fault, verdict.verified_to) == (None, 51)  # with the entry of the closing
    body = json.loads(AuditEntry.objects.get(seq=51).body)
    assert body["action"] == "audit.segment_closed" and body["sha256"] == made.file_digest
    files = exported(tmp_path)
    assert "31 to 52, 22 shown" in files.verify().stdout
    segment = Files(path, files.anchors, files.key)
    assert "1 to 30, 30 shown" in segment.verify().stdout
    fill(20)
    assert close(archive, 45).first == 31
    assert exported(tmp_path).verify().returncode == 0
    assert [one.last for one in AuditSegment.objects.all()] == [30, 45]


def test_an_export_behind_a_segment_needs_its_signed_record(archive, tmp_path):
    fill(20)
    close(archive, 10)
    files = exported(tmp_path)
    lines = files.export.read_text().splitlines(keepends=True)
    header = json.loads(lines[0])
    header["segment"]["record"]["last"] = 9
    for changed in (header, {k: v for k, v in header.items() if k != "segment"}):
        text = json.dumps(changed, sort_keys=True, separators=(",", ":")) + "\n"
        files.export.write_text("".join([text, *lines[1:]]))
        assert files.verify().returncode == 1


def test_nothing_is_removed_from_a_broken_log_or_without_a_file(archive):
    fill(20)
    with pytest.raises(Invalid, match="no entry is older"):
        audit_segment_close(before=db_now() - timedelta(days=1), folder=archive, actor=ACTOR)
    (archive / "audit-1-10.jsonl").write_text("somebody's")
    with pytest.raises(Exception, match="cannot be written: File exists"):
        close(archive, 10)
    by_force("UPDATE console_auditentry SET hash = %s WHERE seq = 5", "0" * 64)
    with pytest.raises(Conflict, match="broken from 5 on"):
        close(archive, 12)
    assert AuditEntry.objects.count() == 20 and not AuditSegment.objects.exists()


def test_the_newest_entry_stays_and_the_log_is_closed_again_behind_it(archive):
    fill(5)
    made = audit_segment_close(before=db_now() + timedelta(days=1), folder=archive, actor=ACTOR)
    assert made.last == 4 and AuditEntry.objects.order_by("seq").first().seq == 5
    with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM console_auditentry")


def test_the_command_says_what_it_closed(archive, capsys):
    fill(3)
    tomorrow = (db_now() + timedelta(days=1)).date().isoformat()
    call_command("close_audit_segment", before=tomorrow, to=str(archive))
    assert "closed 1 to 2" in capsys.readouterr().out
    for wrong, message in (
        ({"before": "soon", "to": str(archive)}, "--before must be a day"),
        ({"before": tomorrow, "to": str(archive / "none")}, "is no folder"),
        ({"before": "2020-01-01", "to": str(archive)}, "no entry is older"),
    ):
        with pytest.raises(CommandError, match=message):
            call_command("close_audit_segment", **wrong)

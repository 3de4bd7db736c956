"""The key that signs the audit log is replaced: old proofs hold, and no stranger's key slips in."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest
from django.conf import settings

from console.access import EVERYTHING
from console.chain import body_digest, entry_hash, instant
from console.clock import db_now
from console.exceptions import AuditUnavailable, Conflict
from console.models import AuditEntry
from console.services import audit_rotation
from console.services.audit_anchor import audit_anchor
from console.services.audit_check import audit_check
from console.services.audit_key import anchors_held, signer
from console.services.audit_rotation import audit_key_replace
from console.services.audit_segment import audit_segment_close
from console.signing import Signer, line_of
from tests.console.audit.exports import ACTOR, exported, fill
from tests.fakes.stack import ROOT
from tests.fakes.waiting import PATIENCE_S

pytestmark = pytest.mark.django_db


def test_what_the_old_key_signed_is_proved_with_the_new_one(tmp_path):
    fill(20, anchor_every=5)
    (tmp_path / "before").mkdir()
    old = exported(tmp_path / "before")
    was = signer().public_hex
    now = audit_key_replace(actor=ACTOR)
    assert now == signer().public_hex != was
    assert old.key.read_text() != settings.AUDIT_KEY_FILE.with_suffix(".pub").read_text()
    entry = AuditEntry.objects.get(action="audit.key_replaced")
    body = json.loads(entry.body)
    assert (body["key"], body["former_key"]) == (now, was)
    assert audit_check(rights=EVERYTHING, is_full=True).fault is None
    fill(20, anchor_every=5)
    assert audit_check(rights=EVERYTHING, is_full=True).fault is None
    new = exported(tmp_path)
    assert new.verify().returncode == 0, new.verify().stdout
    new.export = old.export  # the old export, the new anchors and the new key
    assert new.verify().returncode == 0, new.verify().stdout
    new.key = old.key  # who trusted the old key follows its signature to the new one
    assert new.verify().returncode == 0, new.verify().stdout
    alone = new.verify(anchors=False)
    assert alone.returncode == 0 and "no anchors given" in alone.stdout


def test_an_export_of_the_old_key_alone_does_not_hold_under_the_new_one(tmp_path):
    fill(10)
    old = exported(tmp_path)
    audit_key_replace(actor=ACTOR)
    old.key.write_bytes(settings.AUDIT_KEY_FILE.with_suffix(".pub").read_bytes())
    done = old.verify(anchors=False)
    assert done.returncode == 1 and "signed with another key" in done.stdout


def test_a_key_that_was_replaced_closes_nothing_newer(tmp_path):
    fill(10)
    stolen = signer()
    audit_key_replace(actor=ACTOR)
    fill(10, anchor_every=10)
    files = exported(tmp_path)
    lines = files.export.read_bytes().splitlines(keepends=True)
    record = json.loads(lines[-1])["record"]
    lines[-1] = (stolen.sign(record) + "\n").encode()
    files.export.write_bytes(b"".join(lines))
    done = files.verify()
    assert done.returncode == 1 and "a key that was replaced at" in done.stdout


def forged_anchors(own: Signer, successor: str) -> bytes:
    """A file of anchors that its forger signed, ending with a key that is not the forger's."""
    head = AuditEntry.objects.order_by("-seq").first()
    facts = {"anchor": 1, "at": instant(db_now()), "before": "0" * 64}
    facts |= {
        "hash": head.hash,
        "seq": head.seq,
        "next_key": successor,
        "next_signature": "0" * 128,
    }
    return (own.sign(facts) + "\n").encode()


def test_nobody_names_the_consoles_key_as_the_successor_of_theirs(tmp_path, settings):
    fill(5)
    files = exported(tmp_path)
    forger = Signer.new()
    files.anchors.write_bytes(forged_anchors(forger, signer().public_hex))
    done = files.verify()
    assert done.returncode == 1 and "signature" in done.stdout
    settings.AUDIT_ANCHORS_FILE.write_bytes(files.anchors.read_bytes())
    verdict = audit_check(rights=EVERYTHING, is_full=True)
    assert verdict.fault is not None and "line 1 of the anchors" in verdict.fault.why


def test_a_file_that_the_consoles_key_never_signed_is_a_strangers(tmp_path, settings):
    fill(5)
    files = exported(tmp_path)
    head = AuditEntry.objects.order_by("-seq").first()
    facts = {"anchor": 1, "at": instant(db_now()), "before": "0" * 64}
    facts |= {"hash": head.hash, "seq": head.seq}
    files.anchors.write_text(Signer.new().sign(facts) + "\n")
    assert files.verify().returncode == 1
    settings.AUDIT_ANCHORS_FILE.write_bytes(files.anchors.read_bytes())
    assert audit_check(rights=EVERYTHING, is_full=True).fault is not None


def test_a_crash_after_the_change_was_signed_is_finished_by_the_next_run(monkeypatch):
    fill(10, anchor_every=10)
    was = signer().public_hex

    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(audit_rotation, "_put", dies)
        with pytest.raises(KeyboardInterrupt):
            audit_key_replace(actor=ACTOR)
    assert signer().public_hex == was
    with pytest.raises(AuditUnavailable, match="replaced"):
        fill(1)
        audit_anchor()
    now = audit_key_replace(actor=ACTOR)
    assert now == signer().public_hex != was
    with anchors_held() as anchors:
        assert anchors.last()[0]["next_key"] == now  # the same change, not another one behind it
    audit_anchor()
    assert audit_check(rights=EVERYTHING, is_full=True).fault is None


def test_a_segment_of_the_old_key_and_one_of_the_new(tmp_path):
    fill(10, anchor_every=5)
    archive = tmp_path / "archive"
    archive.mkdir()
    audit_segment_close(before=db_now(), folder=archive, actor=ACTOR)
    audit_key_replace(actor=ACTOR)
    fill(10, anchor_every=5)
    audit_segment_close(before=db_now(), folder=archive, actor=ACTOR)
    audit_anchor()
    files = exported(tmp_path)
    assert files.verify().returncode == 0, files.verify().stdout
    for file in archive.iterdir():
        files.export = file
        assert files.verify().returncode == 0, files.verify().stdout
    assert audit_check(rights=EVERYTHING, is_full=True).fault is None


def test_a_key_that_another_machine_has_is_taken_on_by_this_ones_anchors(tmp_path, settings):
    fill(10, anchor_every=5)
    settings.AUDIT_ANCHORS_FILE = tmp_path / "second.jsonl"  # a machine with a file of its own
    audit_anchor()
    settings.AUDIT_ANCHORS_FILE = tmp_path / "first.jsonl"
    audit_anchor()
    former = settings.AUDIT_KEY_FILE
    settings.AUDIT_KEY_FILE = tmp_path / "key-2.pem"
    settings.AUDIT_KEY_FILE.write_bytes(former.read_bytes())
    now = audit_key_replace(actor=ACTOR)
    brought = settings.AUDIT_KEY_FILE
    settings.AUDIT_KEY_FILE, settings.AUDIT_ANCHORS_FILE = former, tmp_path / "second.jsonl"
    assert audit_key_replace(actor=ACTOR, by=brought) == now == signer().public_hex
    fill(5)
    audit_anchor()
    assert audit_check(rights=EVERYTHING, is_full=True).fault is None
    files = exported(tmp_path)
    assert files.verify().returncode == 0, files.verify().stdout
    with pytest.raises(Conflict, match="in place already"):
        audit_key_replace(actor=ACTOR, by=brought)
    with pytest.raises(AuditUnavailable, match="no private key"):
        audit_key_replace(actor=ACTOR, by=tmp_path / "nothing")


def test_where_the_key_beside_was_lost_nothing_is_written_over(monkeypatch):
    fill(10, anchor_every=10)

    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(audit_rotation, "_put", dies)
        with pytest.raises(KeyboardInterrupt):
            audit_key_replace(actor=ACTOR)
    beside = settings.AUDIT_KEY_FILE.with_name(f".{settings.AUDIT_KEY_FILE.name}.next")
    agreed = beside.read_bytes()
    beside.unlink()
    with pytest.raises(AuditUnavailable, match="was replaced"):
        audit_key_replace(actor=ACTOR)
    assert not beside.exists()
    beside.write_bytes(agreed)  # it was found again
    audit_key_replace(actor=ACTOR)
    assert settings.AUDIT_KEY_FILE.read_bytes() == agreed


def test_a_segment_that_a_former_key_forged_is_betrayed_by_the_head_at_its_end(tmp_path):
    fill(12, anchor_every=4)
    files = exported(tmp_path)
    former = signer()
    audit_key_replace(actor=ACTOR)
    lines = files.export.read_bytes().splitlines(keepends=True)
    wrong = "ab" * 32
    record = {"at": instant(db_now()), "by": "x", "closing": 1, "first": 1, "head": wrong}
    record |= {"is_segment": True, "last": 4, "sha256": "0" * 64}
    header = json.loads(lines[0])
    header |= {"first": 5, "before": wrong, "segment": json.loads(former.sign(record))}
    files.anchors.write_bytes(settings.AUDIT_ANCHORS_FILE.read_bytes())
    files.key.write_bytes(settings.AUDIT_KEY_FILE.with_suffix(".pub").read_bytes())
    files.export.write_bytes(forged(header, wrong, former))
    done = files.verify()
    assert done.returncode == 1 and "begins behind other entries" in done.stdout, done.stdout


def forged(header, before, key) -> bytes:
    """Entries 5 and 6 behind a head that never was, closed by `key`."""
    content, head = (line_of(header) + "\n").encode(), bytes.fromhex(before)
    for seq in (5, 6):
        head = entry_hash(head, seq, body_digest("{}"))
        content += (line_of({"body": "{}", "hash": head.hex(), "seq": seq}) + "\n").encode()
    closing = {"at": header["at"], "by": "x", "closing": 1, "first": 5, "head": head.hex()}
    closing |= {"is_segment": False, "last": 6, "sha256": hashlib.sha256(content).hexdigest()}
    return content + (key.sign(closing) + "\n").encode()


@pytest.mark.process
def test_many_runs_at_once_leave_one_key_that_the_anchors_name(stack):
    keys = set()
    runs = [
        subprocess.Popen(
            [sys.executable, ROOT / "manage.py", "replace_audit_key"],
            cwd=stack.dir, env=stack.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(4)
    ]  # fmt: skip
    for run in runs:
        out, err = run.communicate(timeout=PATIENCE_S)
        assert run.returncode == 0, err
        keys.add(out.strip().splitlines()[-1])
    assert len(keys) == 4
    newest = json.loads((stack.dir / "audit-anchors.jsonl").read_text().splitlines()[-1])
    in_place = Signer.read(stack.dir / "audit-key.pem").public_hex
    assert newest["record"].get("next_key", newest["key"]) == in_place
    verdict = stack.request("GET", "/audit/verify", params={"full": "true"}).json()
    assert verdict["ok"], verdict

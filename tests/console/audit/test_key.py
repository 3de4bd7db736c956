"""The key that signs the audit log is replaced: old proofs hold, and no stranger's key slips in."""

from __future__ import annotations

import json

import pytest
from django.conf import settings

from console.access import EVERYTHING
from console.chain import instant
from console.clock import db_now
from console.exceptions import AuditUnavailable
from console.models import AuditEntry
from console.services import audit_rotation
from console.services.audit_anchor import audit_anchor
from console.services.audit_check import audit_check
from console.services.audit_key import anchors_held, signer
from console.services.audit_rotation import audit_key_replace
from console.services.audit_segment import audit_segment_close
from console.signing import Signer
from tests.console.audit.exports import ACTOR, exported, fill

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

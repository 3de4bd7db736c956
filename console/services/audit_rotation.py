"""Replace the key that signs the audit log.

The change is one anchor that both keys signed, so that who trusts either follows to the other. What
the former key signs from then on holds no more.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from django.conf import settings
from django.db import transaction

from console.access import Act
from console.actors import Actor
from console.choices import AuditStage
from console.clock import db_now
from console.exceptions import AuditUnavailable, Conflict
from console.services.audit import audit_append
from console.services.audit_anchor import anchor_record, audit_head
from console.services.audit_key import (
    Anchors,
    anchors_held,
    folder_sync,
    key_write,
    public_half_write,
    signer,
)
from console.signing import Signer, SigningError


def audit_key_replace(*, actor: Actor, by: Path | None = None, now: datetime | None = None) -> str:
    """Make a new key, or take the one in the file `by`, and put it in place; returns its public
    half, hex. A change that was signed when an earlier run died is finished instead.

    Raises Forbidden, Conflict where the key is in place already, AuditUnavailable where a key, the
    log or the anchors cannot be used.
    """
    actor.rights.require(Act.CLOSE)
    now = now or db_now()
    beside: Path = settings.AUDIT_KEY_FILE.with_name(f".{settings.AUDIT_KEY_FILE.name}.next")
    with anchors_held() as anchors:  # to the end: a second run would write over the key beside
        former = signer().public_hex
        new = _agreed(anchors, beside)
        if new is None:
            _, before = anchors.last()
            new = Signer.new() if by is None else _read(by)
            if new.public_hex == former:
                raise Conflict("this key is in place already")
            _keep(new, beside)
            _note("audit.key_replacing", former, new, actor, now)
            head = audit_head()
            assert head is not None, "the note above"
            anchors.append(new.succeeding(anchor_record(head, now, before)))
        _put(beside)
    _note("audit.key_replaced", former, new, actor, now)
    return new.public_hex


def _agreed(anchors: Anchors, beside: Path) -> Signer | None:
    """The key that the newest anchor names as the next one."""
    newest, _ = anchors.newest()
    try:
        key = Signer.read(beside)
    except SigningError:
        return None  # none is there, or an earlier run died while writing it: nothing names it
    return key if newest is not None and newest.next_key == key.public_hex else None


def _read(path: Path) -> Signer:
    try:
        return Signer.read(path)
    except SigningError as error:
        raise AuditUnavailable(str(error)) from error


def _keep(key: Signer, beside: Path) -> None:
    try:
        key_write(key, beside)
    except OSError as error:
        raise AuditUnavailable(f"{beside.name} cannot be written: {error.strerror}") from error


def _put(beside: Path) -> None:
    """In place of the former one, for good."""
    path: Path = settings.AUDIT_KEY_FILE
    beside.replace(path)
    folder_sync(path.parent)
    public_half_write()


def _note(action: str, former: str, new: Signer, actor: Actor, now: datetime) -> None:
    with transaction.atomic():
        audit_append(
            action=action,
            stage=AuditStage.NOTE,
            actor=actor,
            now=now,
            process="cli",
            facts={"object": "audit key", "key": new.public_hex, "former_key": former},
        )

"""Close a segment of the audit log: export it, sign it, remove it. The chain goes on behind it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from django.conf import settings
from django.db import connection, transaction

from console.access import Act
from console.actors import Actor
from console.chain import instant
from console.choices import AuditStage
from console.clock import db_now
from console.exceptions import AuditUnavailable, Conflict, Invalid
from console.models import AuditEntry, AuditSegment
from console.selectors.audit import AuditFilter
from console.selectors.audit_chain import log_start
from console.services.audit import audit_append
from console.services.audit_check import audit_check
from console.services.audit_export import export_behind
from console.services.audit_key import folder_sync, signer

_VERIFY = Path(__file__).resolve().parents[2] / "bin" / "audit-verify"


def audit_segment_close(
    *, before: datetime, folder: Path, actor: Actor, now: datetime | None = None
) -> AuditSegment:
    """Close what is older than `before`; the newest entry always stays.

    Raises Invalid when nothing is that old, Conflict for a log that is broken, AuditUnavailable for
    a file that cannot be written or does not verify; then nothing was removed.
    """
    now = now or db_now()
    first = log_start()[0] + 1
    older = AuditEntry.objects.filter(created_at__lt=before).order_by("-seq").first()
    newest = AuditEntry.objects.order_by("-seq").values_list("seq", flat=True).first() or 0
    last = min(older.seq, newest - 1) if older else 0
    if last < first:
        raise Invalid(f"no entry is older than {instant(before)}")
    actor.rights.require(Act.CLOSE)
    verdict = audit_check(rights=actor.rights, is_full=True)
    if verdict.fault is not None:
        raise Conflict(f"the log is broken from {verdict.fault.seq} on: {verdict.fault.why}")
    path = folder / f"audit-{first}-{last}.jsonl"
    record, digest = _written(path, last, actor, now)
    begin, head = AuditEntry.objects.get(seq=first), AuditEntry.objects.get(seq=last)
    with transaction.atomic(), _deletion_allowed():
        AuditEntry.objects.filter(seq__gte=first, seq__lte=last).delete()
        segment = AuditSegment.objects.create(
            first=first,
            last=last,
            head_hash=head.hash,
            first_at=begin.created_at,
            last_at=head.created_at,
            closed_at=now,
            closed_by=actor.name,
            file_name=path.name,
            file_digest=digest,
            record=record,
        )
        audit_append(
            action="audit.segment_closed",
            stage=AuditStage.NOTE,
            actor=actor,
            now=now,
            process="cli",
            facts={
                "object": f"audit log {first} to {last}",
                "first": first,
                "last": last,
                "file": path.name,
                "sha256": digest,
            },
        )
    return segment


def _written(path: Path, last: int, actor: Actor, now: datetime) -> tuple[str, str]:
    """Write and verify the file; returns its closing record and its SHA-256."""
    export = export_behind(last, chosen=AuditFilter(), at=now, by=actor, is_segment=True)
    digest, line = hashlib.sha256(), b""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        with os.fdopen(fd, "wb") as file:
            for line in export.lines(signer()):
                file.write(line)
                digest.update(line)
            file.flush()
            os.fsync(file.fileno())
        folder_sync(path.parent)
    except OSError as error:
        raise AuditUnavailable(f"{path} cannot be written: {error.strerror}") from error
    beside = [settings.AUDIT_KEY_FILE.with_suffix(".pub")]
    if settings.AUDIT_ANCHORS_FILE.exists():
        beside.append(settings.AUDIT_ANCHORS_FILE)
    done = subprocess.run(  # noqa: S603 - our own program and files
        [sys.executable, "-I", str(_VERIFY), str(path), *map(str, beside)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise AuditUnavailable(f"{path} does not verify: {done.stdout or done.stderr}")
    return line.decode().rstrip("\n"), digest.hexdigest()


@contextlib.contextmanager
def _deletion_allowed() -> Iterator[None]:
    """Without the trigger that refuses it; only the table's owner can do that."""
    name, table = "console_audit_no_delete", "console_auditentry"
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER console_audit_no_change")
            yield
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER console_audit_no_change")
            return
        cursor.execute("SELECT sql FROM sqlite_master WHERE name = %s", [name])
        (text,) = cursor.fetchone()
        cursor.execute(f"DROP TRIGGER {name}")
        yield
        cursor.execute(text)

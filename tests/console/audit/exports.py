"""Exports for tests of the verifier, and the verifier as a process."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.db import transaction

from console.access import EVERYTHING
from console.actors import Actor
from console.choices import AuditStage, Via
from console.clock import db_now
from console.selectors.audit import AuditFilter
from console.services.audit import audit_append
from console.services.audit_anchor import audit_anchor
from console.services.audit_export import audit_export
from console.services.audit_key import signer

VERIFY = Path(__file__).parents[3] / "bin" / "audit-verify"
ACTOR = Actor(
    user_id=1,
    name="ana",
    via=Via.API,
    token_prefix="qsc_abcdefgh",
    request_id="r-1",
    rights=EVERYTHING,
)


def fill(count: int, *, anchor_every: int = 0) -> None:
    """Entries with texts that JSON must escape."""
    for number in range(count):
        with transaction.atomic():
            audit_append(
                action="test.done" if number % 3 else "other.done",
                stage=AuditStage.NOTE,
                actor=ACTOR,
                now=db_now(),
                process="test",
                engine_name=f"engine-{number % 2}",
                facts={"number": number, "text": 'a "quoted" \\ line\nand Grüße \u2028 \x7f'},
            )
        if anchor_every and number % anchor_every == anchor_every - 1:
            audit_anchor()


@dataclass
class Files:
    """What an auditor has."""

    export: Path
    anchors: Path
    key: Path

    def verify(self, *, anchors: bool = True, key: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the verifier as a program of its own: no Django, no environment."""
        more = [str(self.anchors)] * anchors + [str(self.key)] * key
        return subprocess.run(
            [sys.executable, "-I", str(VERIFY), str(self.export), *more],
            capture_output=True, text=True, timeout=120, check=False, env={},
        )  # fmt: skip


def exported(folder: Path, chosen: AuditFilter | None = None) -> Files:
    """The whole log, or what is chosen of it, in files of its own."""
    made = audit_export(chosen=chosen or AuditFilter(), actor=ACTOR)
    path = folder / "export.jsonl"
    path.write_bytes(b"".join(made.lines(signer())))
    anchors = folder / "anchors.jsonl"
    anchors.write_bytes(Path(settings.AUDIT_ANCHORS_FILE).read_bytes())
    key = folder / "audit.pub"
    key.write_bytes(Path(settings.AUDIT_KEY_FILE).with_suffix(".pub").read_bytes())
    return Files(path, anchors, key)

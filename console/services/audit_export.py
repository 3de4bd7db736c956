"""Export the audit log as lines that prove themselves; docs/audit.md has the format.

What a filter leaves out is still in the file by its digest, so that the chain can be followed from
one end to the other.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from django.db import transaction
from django.db.models import QuerySet

from console.access import Act, Rights
from console.actors import Actor
from console.chain import body_digest, instant
from console.choices import AuditStage
from console.clock import db_now
from console.models import AuditEntry
from console.selectors.audit import AuditFilter, audit_rows
from console.selectors.audit_chain import log_start, newest_segment
from console.services.audit import audit_append
from console.services.audit_anchor import audit_anchor
from console.services.audit_key import anchors_check, signer
from console.signing import Signer, line_of

EXPORT_TYPES = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_LINES = 200  # a piece
_ROWS = 2000
_RUN = 5000  # digests a line, at most


@dataclass(frozen=True)
class Export:
    """What goes into one file: from `first` to `last`, behind what is in `segment`."""

    first: int
    last: int
    before: str
    segment: str
    chosen: AuditFilter
    at: str
    by: str
    rights: Rights
    is_segment: bool = False

    def pieces(self, form: str) -> Iterator[bytes]:
        """The file's bytes, as "jsonl" or as "csv"."""
        lines = self.lines(signer()) if form == "jsonl" else self.table()
        while some := b"".join(islice(lines, _LINES)):
            yield some

    def file_name(self, form: str) -> str:
        """Sortable, and safe in a header."""
        return f"audit-{self.first}-{self.last}.{form}"

    def table(self) -> Iterator[bytes]:
        """The chosen entries as CSV, for people; spreadsheets take no cell for a formula."""
        yield b"seq,created_at,action,stage,kind,result,actor,via,token,engine,job,request,body\r\n"
        rows = self._chosen().order_by("seq")
        for row in rows.iterator(_ROWS):
            yield _csv(
                row.seq, instant(row.created_at), row.action, row.stage, row.kind, row.result,
                row.actor_name, row.via, row.token_prefix, row.engine_name, row.job_id or "",
                row.request_id, row.body,
            )  # fmt: skip

    def lines(self, key: Signer) -> Iterator[bytes]:
        """The file, line by line; the last one is its signature."""
        digest = hashlib.sha256()
        head = self.before
        yield _counted(digest, self._header())
        for line, head in self._entries():  # noqa: B007 - the last head is signed
            yield _counted(digest, line)
        record = {
            "closing": 1,
            "is_segment": self.is_segment,
            "first": self.first,
            "last": self.last,
            "head": head,
            "sha256": digest.hexdigest(),
            "at": self.at,
            "by": self.by,
        }
        yield (key.sign(record) + "\n").encode()

    def _header(self) -> str:
        header = {
            "export": 1,
            "first": self.first,
            "before": self.before,
            "filter": self.chosen.as_text(),
            "at": self.at,
            "by": self.by,
        }
        text = line_of(header)
        # A segment's record goes in as it was signed.
        return f'{text[:-1]},"segment":{self.segment}}}' if self.segment else text

    def _chosen(self) -> QuerySet[AuditEntry]:
        """What is in the file in the clear: what fits, of what whoever exports may read."""
        rows = self.chosen.rows(audit_rows(self.rights))
        return rows.filter(seq__gte=self.first, seq__lte=self.last)

    def _entries(self) -> Iterator[tuple[str, str]]:
        rows = AuditEntry.objects.filter(seq__gte=self.first, seq__lte=self.last).order_by("seq")
        chosen = iter(self._chosen().order_by("seq").values_list("seq", flat=True).iterator(_ROWS))
        wanted = next(chosen, None)
        hidden: list[str] = []
        begin = self.first
        last_hash = self.before
        for seq, body, found in rows.values_list("seq", "body", "hash").iterator(_ROWS):
            if seq == wanted:
                if hidden:
                    yield _run(begin, seq - 1, hidden, last_hash), last_hash
                    hidden = []
                yield line_of({"body": body, "hash": found, "seq": seq}), found
                wanted, begin = next(chosen, None), seq + 1
            else:
                hidden.append(body_digest(body).hex())
                if len(hidden) == _RUN:
                    yield _run(begin, seq, hidden, found), found
                    hidden, begin = [], seq + 1
            last_hash = found
        if hidden:
            yield _run(begin, self.last, hidden, last_hash), last_hash


def _csv(*cells: object) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerow(
        f"'{cell}" if str(cell)[:1] in _FORMULA else str(cell) for cell in cells
    )
    return text.getvalue().encode()


def _run(first: int, last: int, digests: list[str], found: str) -> str:
    return line_of({"digests": "".join(digests), "first": first, "hash": found, "last": last})


def _counted(digest: hashlib._Hash, line: str) -> bytes:
    content = (line + "\n").encode()
    digest.update(content)
    return content


def audit_export(
    *,
    chosen: AuditFilter,
    actor: Actor,
    form: str = "jsonl",
    process: str = "web",
    now: datetime | None = None,
) -> Export:
    """Record an export, sign the head, and return what goes into the file: the log up to and with
    the entry of this export. Raises Forbidden, AuditUnavailable."""
    actor.rights.require(Act.AUDIT)
    now = now or db_now()
    anchors_check()  # refuse now rather than after the entry, or at the end of a file
    with transaction.atomic():
        entry = audit_append(
            action="audit.exported",
            stage=AuditStage.NOTE,
            actor=actor,
            now=now,
            process=process,
            facts={"object": "audit log", "form": form, "filter": chosen.as_text()},
        )
    audit_anchor(now)
    return export_behind(entry.seq, chosen=chosen, at=now, by=actor)


def export_behind(
    last: int, *, chosen: AuditFilter, at: datetime, by: Actor, is_segment: bool = False
) -> Export:
    """From the beginning of the log, or from behind what was closed last, to entry `last`."""
    segment = newest_segment()
    before_seq, before = log_start()
    return Export(
        first=before_seq + 1,
        last=last,
        before=before,
        segment=segment.record if segment else "",
        chosen=chosen,
        at=instant(at),
        by=by.name,
        rights=by.rights,
        is_segment=is_segment,
    )

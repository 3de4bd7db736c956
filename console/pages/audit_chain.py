"""The chain on pages: how far it was checked, its signed heads, and what changed on ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any  # bodies and anchors are any JSON objects

from django.conf import settings

from console.models import AuditCheck
from console.selectors.audit_chain import log_start

_TAIL_BYTES = 16_384
NUM_ANCHORS = 10


@dataclass(frozen=True)
class CheckView:
    """What the last check found; `seq` is the last entry that is as it was written."""

    seq: int
    head: int
    checked_at: datetime | None
    anchored_to: int
    anchored_at: datetime | None
    fault_seq: int
    fault: str

    @property
    def word(self) -> str:
        """As a state."""
        if self.checked_at is None:
            return "not checked"
        return "broken" if self.fault else "verified"


def check_view() -> CheckView:
    """The last check, or that there was none."""
    row = AuditCheck.objects.filter(pk=1).first()
    if row is None:
        return CheckView(0, 0, None, 0, None, 0, "")
    anchored_at = datetime.fromisoformat(row.anchored_at) if row.anchored_at else None
    return CheckView(
        row.seq, row.head, row.checked_at, row.anchored_to, anchored_at, row.fault_seq, row.fault
    )


def check_steps(view: CheckView) -> list[dict[str, str]]:
    """What was checked, in words."""
    if view.checked_at is None:
        return []
    is_anchor = "anchor" in view.fault or "signed" in view.fault or "cut off" in view.fault
    chain = "ok" if not view.fault or is_anchor else "failed"
    first = log_start()[0] + 1
    return [
        {
            "word": chain,
            "title": "Chain",
            "text": f"{first:,} to {view.seq:,}: numbers without a gap, each hash follows from the "
            "one before, each column is what the body says"
            if chain == "ok"
            else f"good to {view.seq:,}; {view.fault}",
        },
        {
            "word": "failed" if is_anchor else "ok" if view.anchored_to else "not checked",
            "title": "Signed heads",
            "text": view.fault
            if is_anchor
            else f"the log agrees with every one, up to {view.anchored_to:,}"
            if view.anchored_to
            else "none is signed yet",
        },
    ]


def newest_anchors() -> list[dict[str, Any]]:
    """The newest signed heads, from the file outside the database; not checked here."""
    try:
        with settings.AUDIT_ANCHORS_FILE.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return []
    found = []
    for line in reversed(lines):
        try:
            document = json.loads(line)
            record = document["record"]
            found.append(
                {
                    "seq": int(record["seq"]),
                    "hash": str(record["hash"]),
                    "at": datetime.fromisoformat(record["at"]),
                    "key": str(document["key"]),
                }
            )
        except (ValueError, KeyError, TypeError):
            continue  # the first line of the piece is cut; what is forged is the check's to name
    return found[:NUM_ANCHORS]


def rank_changes(ranks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What each rank served before and after, where the entry says it."""
    changes = []
    for rank in ranks:
        before, after = rank.get("weights_before") or {}, rank.get("weights_after") or {}
        cells = [
            {"name": name, "before": before.get(name), "after": after.get(name)}
            for name in dict.fromkeys([*before, *after])
        ]
        if cells:
            changes.append({"dp_rank": rank.get("dp_rank"), "cells": cells})
    return changes

"""The hash chain of the audit log, and the columns that index an entry's body. Pure.

hash(n) = SHA-256("audit-v1" NUL ‖ hash(n-1) ‖ n as 8 bytes, big-endian ‖ SHA-256(body)); hash(0) is
32 zero bytes. docs/decisions/0008-audit-bytes.md
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any  # a parsed body is any JSON object

GENESIS = bytes(32)
_DOMAIN = b"audit-v1\0"


def instant(moment: datetime) -> str:
    """UTC with microseconds and Z: one spelling, which sorts as the times do."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def body_digest(body: str) -> bytes:
    """What the chain keeps of a body: 32 bytes."""
    return hashlib.sha256(body.encode()).digest()


def entry_hash(before: bytes, seq: int, digest: bytes) -> bytes:
    """The hash of entry `seq` behind one with hash `before`; `digest` is its body's."""
    return hashlib.sha256(_DOMAIN + before + seq.to_bytes(8, "big") + digest).digest()


def body_read(text: str) -> dict[str, Any] | None:
    """The body of an entry; None for text that no console wrote, whatever it is."""
    try:
        body = json.loads(text)
        columns_of(body)
        is_one = isinstance(body["at"], str) and (
            body["job"] is None or isinstance(body["job"], str)
        )
        ranks = body.get("ranks", [])
        is_one &= isinstance(ranks, list) and all(isinstance(rank, dict) for rank in ranks)
        is_one &= isinstance(body["actor"], dict)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return body if is_one else None


def columns_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """What the log is searched by, from the body alone. Bodies from before version 0.2 name neither
    `kind` nor `result`."""
    action, actor = str(body["action"]), body["actor"]
    kind = body.get("kind") or ""
    if not kind and body.get("job"):
        kind = str(body.get("object", "")).partition(" on ")[0]
    return {
        "v": body["v"],
        "action": action[:64],
        "stage": body["stage"],
        "actor_name": str(actor["name"])[:150],
        "via": str(actor["via"])[:8],
        "token_prefix": str(actor["token"])[:16],
        "request_id": str(actor["request"])[:64],
        "engine_name": str(body["engine"])[:63],
        "kind": kind[:32],
        "result": str(body.get("result") or _result_of(action, str(body["stage"])))[:24],
    }


def _result_of(action: str, stage: str) -> str:
    last = action.rpartition(".")[2]
    if last.endswith("_refused"):
        return "refused"
    return last if stage == "outcome" else "recorded"

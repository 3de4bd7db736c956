"""Write docs/protocol.md and docs/protocol.schema.json from the message structs themselves.

Run it after a change in engine/protocol; tests/test_docs.py fails when they differ.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from engine import protocol  # noqa: E402 - the project's root is on the path only now

ROOTS: list[Any] = [protocol.Request, protocol.Response, protocol.Event]
HEAD = f"""# The control protocol, version {protocol.PROTOCOL_VERSION}

Generated from `engine/protocol` by `bin/lib/protocol_docs.py`; do not edit by hand.

An engine binds a ROUTER (control) and a PUB (events). A caller connects a DEALER, sends one
`Request` a frame (msgpack, at most {protocol.MAX_CONTROL_BYTES} bytes) and gets `Response` frames
with its `id`: `Progress` any number of times, then exactly one reply. Each event is one `Event`
frame of at most {protocol.MAX_EVENT_BYTES} bytes; `seq` grows by one within an epoch, so a gap is a
loss: ask `Replay`, or `Snapshot` when the ring no longer reaches back. Unknown fields are refused.
Times are seconds on the engine's monotonic clock. A `type` field tells the members of a union
apart.
"""


def schema() -> dict[str, Any]:
    """JSON Schema of every message."""
    _, components = msgspec.json.schema_components(ROOTS, ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": dict(sorted(components.items())),
    }


def markdown() -> str:
    """The page for people."""
    parts = [HEAD]
    for name, shape in schema()["$defs"].items():
        struct = getattr(protocol, name, None) or getattr(protocol.types, name, None)
        text = inspect.cleandoc(struct.__doc__ or "") if struct else ""
        parts.append(f"## {name}\n\n{text}\n")
        if "enum" in shape:
            parts.append("Values: " + ", ".join(f"`{value}`" for value in shape["enum"]) + ".\n")
            continue
        required = set(shape.get("required", []))
        rows = ["| field | type | |", "| --- | --- | --- |"]
        for field, kind in shape.get("properties", {}).items():
            note = "required" if field in required else f"default `{kind.get('default')}`"
            rows.append(f"| `{field}` | {_kind(kind)} | {note} |")
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def _kind(kind: dict[str, Any]) -> str:
    if "$ref" in kind:
        name = kind["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in kind:
        return " or ".join(_kind(item) for item in kind["anyOf"])
    if "enum" in kind:
        return " or ".join(f"`{value}`" for value in kind["enum"])
    if kind.get("type") == "array":
        return f"list of {_kind(kind.get('items', {}))}"
    bounds = [
        f"{sign} {kind[key]}"
        for key, sign in (("minimum", "≥"), ("maximum", "≤"), ("maxLength", "length ≤"))
        if key in kind
    ]
    return str(kind.get("type", "any")) + (f" ({', '.join(bounds)})" if bounds else "")


def files() -> dict[str, str]:
    """What is written: path → content."""
    return {
        "docs/protocol.md": markdown(),
        "docs/protocol.schema.json": json.dumps(schema(), indent=2, sort_keys=True) + "\n",
    }


if __name__ == "__main__":
    for path, content in files().items():
        (ROOT / path).write_text(content)

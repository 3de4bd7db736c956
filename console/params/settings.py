"""Settings of a storage backend as people and scripts send them: what is wrong, and what is secret.

Every sentence names a setting and never its value: a value in the wrong place may be a secret.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, get_type_hints  # a setting's value is any JSON value until it is checked

import msgspec

from engine.protocol import StorageBackend, fields_of, read_config, secrets_of
from engine.protocol.storage_configs import CONFIGS, Field

Settings = dict[str, Any]
FINGERPRINT = "hmac:"  # a stored secret begins so; no secret may
NOT_KEPT = FINGERPRINT + "pending"  # in the place of one that no engine was told yet
_MAX_INT = 2**53 - 1  # beyond it JSON numbers are no whole numbers, and msgspec makes no float
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_USER_IN_URL = re.compile(r"//[^/?#\s]*@")
_SECRET_IN_QUERY = re.compile(
    r"[?&;][^=&;]*(pass|pwd|secret|token|key|auth|cred|sig)[^=&;]*=", re.IGNORECASE
)


def shown(name: str) -> str:
    """A setting's name as it may be repeated: short, and nothing but ASCII."""
    return name[:64].encode("ascii", "backslashreplace").decode()


def problems_of(backend: StorageBackend, document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(setting, what it must be) for everything that is wrong; nothing when it can be sent."""
    fields = {field.name: field for field in fields_of(backend)}
    found = [
        (shown(name), f"is no setting of {backend}; it has {', '.join(fields)}")
        for name in document
        if name not in fields
    ]
    for name, field in fields.items():
        if name not in document:
            if field.is_required:
                found.append((name, "is required"))
        elif why := value_problem(backend, field, document[name]):
            found.append((name, why))
    if not found:
        try:
            read_config(backend, dict(document))
        except ValueError as error:
            found.append(("", str(error)))
    return found


def value_problem(backend: StorageBackend, field: Field, value: object) -> str:
    """What a setting must be, when `value` is not that; empty when it is."""
    if isinstance(value, str):
        return _text_problem(backend, field, value)
    is_whole = isinstance(value, int) and abs(value) <= _MAX_INT
    if not is_whole and not (isinstance(value, float) and math.isfinite(value)):
        return must_be(field)
    return "" if _converts(backend, field.name, value) else must_be(field)


def _text_problem(backend: StorageBackend, field: Field, text: str) -> str:
    if field.kind == "secret" and text.startswith(FINGERPRINT):
        return (
            "is a fingerprint, not the secret: write the secret itself, or name settings that the "
            "engine has by their config_id"
        )
    if _HIDDEN.search(text):
        return "must not hold a control or text-direction character"
    if field.kind != "secret" and (_USER_IN_URL.search(text) or _SECRET_IN_QUERY.search(text)):
        secret = next(iter(sorted(secrets_of(backend))), "")
        where = f"; write it as the setting {secret}" if secret else ""
        return f"must not hold a user name or a secret, which would be stored and shown{where}"
    return "" if _converts(backend, field.name, text) else must_be(field)


def _converts(backend: StorageBackend, name: str, value: object) -> bool:
    hint = get_type_hints(CONFIGS[backend], include_extras=True)[name]
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        return False
    return True


def number(value: float) -> str:
    """`0.25`, `4,096`."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


def bounds_of(field: Field) -> str:
    """`from 1 to 64`, `greater than 0, at most 120`; empty for none."""
    low, high = field.low, field.high
    if low is not None and high is not None and not field.is_low_exclusive:
        return f"from {number(low)} to {number(high)}"
    parts = []
    if low is not None:
        parts.append(
            f"greater than {number(low)}" if field.is_low_exclusive else f"at least {number(low)}"
        )
    if high is not None:
        parts.append(f"at most {number(high)}")
    return ", ".join(parts)


def must_be(field: Field) -> str:
    """What a setting must be, in words."""
    bounds = f" {bounds_of(field)}" if bounds_of(field) else ""
    match field.kind:
        case "integer":
            return f"must be a whole number{bounds}"
        case "number":
            return f"must be a number{bounds}"
        case "flag":
            return "must be true or false"
        case "choice":
            return f"must be one of {', '.join(field.choices)}"
    length = f" of at most {field.max_length:,} characters" if field.max_length else ""
    form = f": {field.help.rstrip('.')}" if field.pattern else ""
    return f"must be text{length}{form}"


def schema_of(backend: StorageBackend) -> dict[str, Any]:
    """The settings as a JSON schema of its own."""
    kind = CONFIGS[backend]
    body: dict[str, Any] = msgspec.json.schema(kind)["$defs"][kind.__name__]
    return {**body, "title": str(backend)}


def about_of(backend: StorageBackend) -> str:
    """What it is, in a line."""
    return (CONFIGS[backend].__doc__ or "").strip().splitlines()[0]

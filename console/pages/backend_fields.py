"""A backend's settings as fields of a form: labels, bounds, what was typed and what is wrong.

Knows the schema, no request. A secret's value is in no field: it is asked for and never shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from console.params.settings import FINGERPRINT, about_of, bounds_of, number
from console.selectors.engines import EngineView
from console.selectors.storage import Attached
from engine.protocol import EXPERIMENTAL_BACKENDS, StorageBackend, fields_of
from engine.protocol.storage_configs import Field

_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
_KINDS = {
    "text": "text",
    "secret": "secret, write-only",
    "path": "path",
    "endpoint": "address",
    "integer": "whole number",
    "number": "number",
    "flag": "yes or no",
}
_ACRONYMS = frozenset({"url", "ttl", "io", "api", "posix", "eic", "id", "l1", "l2", "gb", "kv"})
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def binary(num_bytes: float) -> str:
    """`8 GiB`; empty where it is no whole number of a unit."""
    for unit, name in _UNITS:
        if num_bytes >= unit and num_bytes % unit == 0:
            return f"{num_bytes / unit:,.0f} {name}"
    return ""


def default_text(field: Field) -> str:
    """The default as it is typed; empty for none."""
    value = field.default
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def typed_value(field: Field, text: str) -> object:
    """What a text means; a text that means no such value stays a text, and is refused as one."""
    match field.kind:
        case "integer" if _WHOLE.fullmatch(text):
            return int(text)
        case "number":
            try:
                return float(text)
            except ValueError:
                return text
        case "flag" if text in ("true", "false"):
            return text == "true"
    return text


@dataclass(frozen=True)
class SettingField:
    """One setting, ready to be printed."""

    field: Field
    value: str
    error: str
    present: str = ""  # of a secret: the fingerprint of what is attached now
    is_dropped: bool = False  # of such a secret: it is to be none from now on

    @property
    def name(self) -> str:
        """As the schema has it."""
        return self.field.name

    @property
    def label(self) -> str:
        """`Key prefix` of `key_prefix`."""
        parts = self.name.removeprefix("hicache_storage_").split("_")
        words = " ".join(part.upper() if part in _ACRONYMS else part for part in parts)
        return f"{words[:1].upper()}{words[1:]}"

    @property
    def about(self) -> str:
        """`whole number from 1 to 64, default 4`."""
        if self.field.kind == "choice":
            kind = " | ".join(self.field.choices)
        else:
            kind = f"{_KINDS[self.field.kind]} {bounds_of(self.field)}".strip()
        if self.field.kind == "secret":
            return kind
        if self.field.is_required:
            return f"{kind}, required"
        default = default_text(self.field)
        if isinstance(self.field.default, int | float) and not isinstance(self.field.default, bool):
            default = number(self.field.default)
        readable = self.field.name and self._binary
        return f"{kind}, default {default or 'empty'}{f' ({readable})' if readable else ''}"

    @property
    def _binary(self) -> str:
        is_bytes = self.field.help.startswith("Bytes")
        default = self.field.default
        return binary(float(default)) if is_bytes and isinstance(default, int) else ""

    @property
    def is_long(self) -> bool:
        """A text that needs the width."""
        return self.field.kind in ("text", "path", "endpoint")


@dataclass(frozen=True)
class BackendChoice:
    """One kind of backend: what it is, and why it cannot be attached, if that is known."""

    backend: str
    about: str
    is_experimental: bool
    problem: str


def backend_choices(view: EngineView) -> list[BackendChoice]:
    """All kinds, with what the engine says of each; the server decides in the end."""
    problems = {str(b.backend): b.problem for b in (view.state.backends if view.state else [])}
    return [
        BackendChoice(
            backend=str(one),
            about=about_of(one),
            is_experimental=one in EXPERIMENTAL_BACKENDS,
            problem=problems.get(str(one), ""),
        )
        for one in StorageBackend
    ]


def setting_fields(
    backend: str,
    values: Mapping[str, str],
    errors: Mapping[str, str],
    now: Attached | None,
    dropped: frozenset[str],
) -> list[SettingField]:
    """The settings of a backend, its own first. `now`: what is attached, if it is that backend."""
    present = dict(now.config) if now is not None and now.backend == backend else {}
    return [
        SettingField(
            field=field,
            value="" if field.kind == "secret" else values.get(field.name, default_text(field)),
            error=errors.get(field.name, ""),
            present=_present(field, present),
            is_dropped=field.name in dropped,
        )
        for field in fields_of(StorageBackend(backend))
    ]


def _present(field: Field, config: Mapping[str, object]) -> str:
    value = config.get(field.name)
    is_known = field.kind == "secret" and isinstance(value, str) and value.startswith(FINGERPRINT)
    return str(value) if is_known else ""

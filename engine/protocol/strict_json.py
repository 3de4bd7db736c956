"""JSON as it must be: no duplicate keys, no NaN, no number that a double or 64 bits cannot hold."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

_SURROGATE = re.compile("[\ud800-\udfff]")


def no_constant(text: str) -> object:
    """Refuse NaN and the infinities."""
    raise ValueError(f"{text} is not a JSON number")


def parse(text: str, constant: Callable[[str], object] = no_constant) -> object:
    """The document. Raises ValueError with a sentence that can be shown.

    `constant` makes something of NaN, Infinity and -Infinity, or refuses them.
    """
    try:
        document = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=constant,
            parse_int=_integer,
            parse_float=_finite,
        )
        if "\\u" in text and _SURROGATE.search(json.dumps(document, ensure_ascii=False)):
            raise ValueError("an escape is half of a surrogate pair, which is no character")
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return document


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"duplicate key {twice!r}")
    return found


def _integer(text: str) -> int:
    """msgspec 0.23 ends the process when it makes a float of an integer that is too large."""
    value = int(text)
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"the integer {text[:20]}… does not fit 64 bits")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is no finite number")
    return value

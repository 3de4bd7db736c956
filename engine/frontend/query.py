"""Query parameters, read strictly: the same rule on every route. Raises HTTPError(400)."""

from __future__ import annotations

import math
from collections.abc import Iterable

from starlette.datastructures import QueryParams

from engine.frontend.http_errors import HTTPError


def no_others(query: QueryParams, known: set[str]) -> None:
    """A parameter we do not know is refused, not dropped: it may have been meant."""
    for name in query:
        if name not in known:
            raise HTTPError(
                400, f"unknown query parameter {name}; known are {sorted(known)}", param=name
            )
        if len(query.getlist(name)) > 1:
            raise HTTPError(400, f"query parameter {name} is given twice", param=name)


def number(query: QueryParams, name: str, *, default: float, low: float, high: float) -> float:
    """A finite number within bounds."""
    text = query.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not low <= value <= high or "_" in text:
        raise HTTPError(
            400,
            f"{name} must be a finite number from {low:g} to {high:g}, got {text!r}",
            param=name,
        )
    return value


def is_natural(text: str) -> bool:
    """Digits of a number that is small enough to be one: `int` raises for thousands of them."""
    return text.isascii() and text.isdigit() and len(text) <= 18


def one(query: QueryParams, name: str, *, default: str, choices: Iterable[str]) -> str:
    """One of a closed set of words, exactly."""
    text = query.get(name, default)
    known = [str(choice) for choice in choices]
    if text not in known:
        raise HTTPError(400, f"{name} must be one of {known}, got {text!r}", param=name)
    return text


def flag(query: QueryParams, name: str, *, default: bool) -> bool:
    """true or false."""
    text = query.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false", "1", "0"):
        raise HTTPError(400, f"{name} must be true or false, got {text!r}", param=name)
    return text.lower() in ("true", "1")

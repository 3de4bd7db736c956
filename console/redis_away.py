"""Remembers for a moment that Redis did not answer: a request then waits for it once, not at every
use. What Redis does is never needed; it is only quicker or newer."""

from __future__ import annotations

from console.clock import monotonic_s

REMEMBERED_S = 2.0
_seen_at: list[float] = []


def redis_is_away() -> bool:
    """It did not answer a moment ago."""
    return bool(_seen_at) and 0 <= monotonic_s() - _seen_at[-1] < REMEMBERED_S


def redis_was_away() -> None:
    """It did not answer just now."""
    _seen_at[:] = [monotonic_s()]

"""Why a job would be refused, or would fail, as things are now; the same for every kind."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """One reason."""

    code: str
    message: str
    holder: str | None = None
    remaining_s: float | None = None

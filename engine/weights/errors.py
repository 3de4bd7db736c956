"""Why weights were not taken; the sentence goes to whoever asked."""

from __future__ import annotations


class WeightsError(RuntimeError):
    """An update is refused and nothing has changed."""

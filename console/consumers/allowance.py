"""Time that something may take: some at once, and after that a share of all that passes."""

from __future__ import annotations


class Allowance:
    """So a change is shown at once and many in a row are, but a flood does not fill the process."""

    def __init__(self, *, burst_s: float, share: float, longest_rest_s: float) -> None:
        self._burst_s, self._share = burst_s, share
        self._least_s = -longest_rest_s * share
        self._left_s = burst_s
        self._as_of_s: float | None = None

    def wait_s(self, now_s: float) -> float:
        """How long to rest before the next use: nothing while some is left."""
        self._grow(now_s)
        return max(0.0, -self._left_s / self._share)

    def spend(self, spent_s: float, now_s: float) -> None:
        """So much was taken, up to now; it may have been more than was left."""
        self._grow(now_s)
        self._left_s = max(self._least_s, self._left_s - spent_s)

    def _grow(self, now_s: float) -> None:
        passed_s = 0.0 if self._as_of_s is None else max(0.0, now_s - self._as_of_s)
        self._as_of_s = now_s
        self._left_s = min(self._burst_s, self._left_s + passed_s * self._share)

"""Stop strings in streamed text: found across pieces, and never shown half.

The rank uses it to end a request at the right token, the frontend to cut the text: both see the
same pieces, so they agree.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Finds the first stop string to be completed; ties go to the one that began first."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.matched: str | None = None

    def add(self, text: str) -> str:
        """Take more text; returns what may be shown. After a match returns nothing more."""
        if self.matched is not None or not text:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = self._first(text)
        if found is not None:
            start, self.matched = found
            self._held = ""
            return text[:start]
        keep = self._tail(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back in case a stop string followed."""
        text, self._held = self._held, ""
        return text

    def _first(self, text: str) -> tuple[int, str] | None:
        best: tuple[int, int, str] | None = None  # (end, start, stop)
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[1], best[2])

    def _tail(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for length in range(min(len(text), max(map(len, self._stops)) - 1), 0, -1):
            end = text[len(text) - length :]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0

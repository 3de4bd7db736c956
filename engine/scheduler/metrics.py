"""Counts of one rank: totals since its start, and rates over a short past."""

from __future__ import annotations

from collections import deque

_HIT_WINDOW_S = 60.0
_RATE_WINDOW_S = 5.0
_MIN_PREFILL_TOKENS = 64  # fewer say more about the step than about prefill
_SMOOTH = 0.2


class RankMetrics:
    """Plain numbers; `now` is the rank's monotonic clock."""

    def __init__(self) -> None:
        self.prompt_tokens_total = 0
        self.cached_tokens_total = 0
        self.generated_tokens_total = 0
        self.retractions_total = 0
        self.aborted_total = 0
        self.finished_total = 0
        self.flushes_total = 0
        self.violations_total = 0
        self.violation = ""
        self.prefill_tokens_per_s: float | None = None  # while it prefills, smoothed
        self._admitted: deque[tuple[float, int, int]] = deque()
        self._generated: deque[tuple[float, int]] = deque()

    def admitted(self, prompt_tokens: int, cached_tokens: int, now: float) -> None:
        """A request started, with so much of its prompt found in the cache."""
        self.prompt_tokens_total += prompt_tokens
        self.cached_tokens_total += cached_tokens
        self._admitted.append((now, prompt_tokens, cached_tokens))

    def generated(self, tokens: int, now: float) -> None:
        """A step produced tokens."""
        self.generated_tokens_total += tokens
        self._generated.append((now, tokens))

    def prefilled(self, tokens: int, seconds: float) -> None:
        """A step computed so many prompt tokens in this time."""
        if tokens < _MIN_PREFILL_TOKENS or seconds <= 0:
            return
        rate, before = tokens / seconds, self.prefill_tokens_per_s
        self.prefill_tokens_per_s = rate if before is None else before + (rate - before) * _SMOOTH

    def flushed(self) -> None:
        """Hits of the past say nothing about an empty cache."""
        self.flushes_total += 1
        self._admitted.clear()

    def hit_rate(self, now: float) -> float | None:
        """Cached ÷ prompt tokens of the last minute; None without a request."""
        while self._admitted and self._admitted[0][0] < now - _HIT_WINDOW_S:
            self._admitted.popleft()
        prompt = sum(item[1] for item in self._admitted)
        return sum(item[2] for item in self._admitted) / prompt if prompt else None

    def decode_tokens_per_s(self, now: float) -> float:
        """Tokens a second over the last seconds."""
        while self._generated and self._generated[0][0] < now - _RATE_WINDOW_S:
            self._generated.popleft()
        return sum(item[1] for item in self._generated) / _RATE_WINDOW_S

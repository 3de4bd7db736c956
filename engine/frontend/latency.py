"""Latency histograms of finished requests, in SGLang's names. Knows durations, no requests."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram

_FIRST_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)
_TOKEN_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
_WHOLE_S = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)


class Latencies:
    """One set a frontend; `registry` is exposed by /metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._first = self._histogram(
            "time_to_first_token_seconds", "From receipt to the first token", _FIRST_S
        )
        self._token = self._histogram(
            "inter_token_latency_seconds", "Mean gap between tokens of a request", _TOKEN_S
        )
        self._whole = self._histogram(
            "e2e_request_latency_seconds", "From receipt to the end", _WHOLE_S
        )

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"sglang:{name}", text, buckets=buckets, registry=self.registry)

    def ended(self, *, first_s: float | None, whole_s: float, tokens: int) -> None:
        """A request ended; `first_s` is None when it produced no token."""
        self._whole.observe(whole_s)
        if first_s is not None:
            self._first.observe(first_s)
            if tokens > 1:
                self._token.observe((whole_s - first_s) / (tokens - 1))

"""One attached backend: what was opened for it, and what it says of itself."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from engine.cache.storage.guard import Guard
from engine.cache.storage.worker import StorageWorker
from engine.protocol import RankStorage, StorageConfig, StorageView

_HIT_WINDOW_S = 60.0
_RATE_WINDOW_S = 10.0


@dataclass(slots=True)
class Opened:
    """A backend that has been opened and probed, for these settings of this rank."""

    view: StorageView
    config: StorageConfig
    config_hash: str
    guard: Guard
    identity: bytes
    worker: StorageWorker | None = None  # while it is attached
    number: int = 0  # of the attachment: what a node was stored in
    _samples: deque[tuple[float, int, int, int, int]] = field(default_factory=deque)

    def report(self, now: float | None = None) -> RankStorage:
        """For pages, routes and metrics."""
        now = time.monotonic() if now is None else now
        guard, counters = self.guard, self.guard.counters
        stats = guard.storage.stats()
        at = guard.last_error_at
        hit_rate, read_rate, write_rate = self._rates(now)
        return RankStorage(
            backend=self.view.backend,
            config_id=self.view.config_id,
            config_hash=self.config_hash,
            breaker=guard.breaker.state,
            retry_in_s=guard.breaker.retry_in_s,
            hit_pages=counters.hit_pages,
            miss_pages=counters.miss_pages,
            corrupt_pages=counters.corrupt_pages,
            read_bytes=counters.read_bytes,
            written_pages=counters.written_pages,
            written_bytes=counters.written_bytes,
            dropped_pages=counters.dropped_pages,
            errors=counters.errors,
            last_error=guard.last_error,
            last_error_age_s=None if at is None else max(0.0, now - at),
            hit_rate=hit_rate,
            read_bytes_per_s=read_rate,
            write_bytes_per_s=write_rate,
            stored_pages=stats.stored_pages,
            used_bytes=stats.used_bytes,
            capacity_bytes=stats.capacity_bytes,
        )

    def _rates(self, now: float) -> tuple[float | None, float, float]:
        """Hits ÷ looked for of the last minute, bytes a second of the last ten seconds."""
        c = self.guard.counters
        newest = (now, c.hit_pages, c.miss_pages, c.read_bytes, c.written_bytes)
        samples = self._samples
        samples.append(newest)
        while samples[0][0] < now - _HIT_WINDOW_S:
            samples.popleft()
        oldest = samples[0]
        hits, misses = newest[1] - oldest[1], newest[2] - oldest[2]
        recent = next(sample for sample in samples if sample[0] >= now - _RATE_WINDOW_S)
        span_s = max(now - recent[0], 1.0)
        return (
            hits / (hits + misses) if hits + misses else None,
            (newest[3] - recent[3]) / span_s,
            (newest[4] - recent[4]) / span_s,
        )

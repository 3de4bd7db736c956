"""What a rank reports of itself: gauges and counters of its scheduler, read and never changed."""

from __future__ import annotations

from typing import Any

from engine.ipc.messages import RankStats
from engine.scheduler.scheduler import Scheduler


def rank_stats(scheduler: Scheduler, now: float) -> RankStats:
    """Gauges and counters for a report."""
    metrics = scheduler.metrics
    return RankStats(
        places=scheduler.places(),
        kv=scheduler.kv.usage(),
        hit_rate=metrics.hit_rate(now),
        decode_tokens_per_s=metrics.decode_tokens_per_s(now),
        waiting_uncached_tokens=sum(req.num_remaining for req in scheduler.waiting),
        prompt_tokens_total=metrics.prompt_tokens_total,
        cached_tokens_total=metrics.cached_tokens_total,
        generated_tokens_total=metrics.generated_tokens_total,
        retractions_total=metrics.retractions_total,
        aborted_total=metrics.aborted_total,
        finished_total=metrics.finished_total,
        evicted_pages_total=scheduler.kv.num_evicted_total,
        flushes_total=metrics.flushes_total,
        violations_total=metrics.violations_total,
        violation=metrics.violation,
        prefill_tokens_per_s=metrics.prefill_tokens_per_s,
        empty_cache_total=scheduler.runner.num_empty_cache,
        hit_tokens=scheduler.hit_tokens,
        **_of_tiers(scheduler),
    )


def _of_tiers(scheduler: Scheduler) -> dict[str, Any]:  # Any: the named fields of RankStats
    if scheduler.tiers is None:
        return {}
    host, size = scheduler.tiers.host, scheduler.kv.page_size
    return {
        "host": host.usage(),
        "backup_tokens_total": host.backup_pages_total * size,
        "backup_dropped_tokens_total": host.dropped_pages_total * size,
        "load_back_tokens_total": host.loaded_pages_total * size,
        "host_evicted_tokens_total": scheduler.kv.tree.num_host_evicted_total * size,
        "copy_errors_total": host.copy_errors_total,
    }

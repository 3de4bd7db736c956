"""Prometheus metrics, made from the newest reports when asked: SGLang's names, one label a rank."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from engine.frontend.core import Frontend
from engine.protocol import PLACES, Breaker, RankView

_COUNTERS = {
    "prompt_tokens": ("prompt_tokens_total", "Prompt tokens of admitted requests"),
    "cached_tokens": ("cached_tokens_total", "Prompt tokens found in the cache"),
    "generation_tokens": ("generated_tokens_total", "Tokens generated"),
    "num_requests": ("finished_total", "Requests that ended on the rank"),
    "num_aborted_requests": ("aborted_total", "Requests that ended by abort on the rank"),
    "num_retracted": ("retractions_total", "Times a request was retracted"),
    "evicted_pages": ("evicted_pages_total", "KV pages evicted"),
    "flushes": ("flushes_total", "Cache flushes"),
    "hicache_backup_tokens": ("backup_tokens_total", "KV tokens copied to the host"),
    "hicache_dropped_tokens": ("backup_dropped_tokens_total", "Not copied: no room on the host"),
    "load_back_tokens": ("load_back_tokens_total", "KV tokens copied back to the device"),
    "hicache_host_evicted_tokens": ("host_evicted_tokens_total", "KV tokens given up on the host"),
    "hicache_copy_errors": ("copy_errors_total", "Failed copies between device and host"),
    "empty_cache": ("empty_cache_total", "Times cached device memory was given back"),
    "kv_account_violations": ("violations_total", "Times the page account did not balance"),
}

_STORAGE_COUNTERS = (
    "hit_pages",
    "miss_pages",
    "corrupt_pages",
    "read_bytes",
    "written_pages",
    "written_bytes",
    "dropped_pages",
    "errors",
)


class _Collector:
    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend

    def collect(self) -> Iterable[Metric]:
        """One family a metric."""
        yield from self._gauges()
        yield from self._counters()

    def _gauges(self) -> Iterable[Metric]:
        frontend = self._frontend
        ranks = frontend.state().ranks

        def gauge(name: str, text: str, values: dict[int, float]) -> Metric:
            family = GaugeMetricFamily(f"sglang:{name}", text, labels=["dp_rank"])
            for rank, value in values.items():
                family.add_metric([str(rank)], value)
            return family

        with_kv = {rank.dp_rank: rank.kv for rank in ranks if rank.kv is not None}
        yield gauge("num_running_reqs", "Running", {r.dp_rank: r.running for r in ranks})
        yield gauge("num_queue_reqs", "Waiting on the rank", {r.dp_rank: r.waiting for r in ranks})
        yield gauge(
            "gen_throughput", "Tokens a second", {r.dp_rank: r.decode_tokens_per_s for r in ranks}
        )
        yield gauge(
            "cache_hit_rate", "Of the last minute", {r.dp_rank: r.hit_rate or 0.0 for r in ranks}
        )
        yield gauge(
            "rank_online", "1 while it reports", {r.dp_rank: float(r.online) for r in ranks}
        )
        yield gauge("rank_idle", "1 when fully idle", {r.dp_rank: float(r.idle) for r in ranks})
        for name, part in (
            ("kv_available_tokens", "free_pages"),
            ("kv_evictable_tokens", "evictable_pages"),
            ("kv_locked_tokens", "locked_pages"),
            ("kv_held_tokens", "held_pages"),
            ("num_used_tokens", "used_pages"),
            ("max_total_num_tokens", "total_pages"),
        ):
            values = {r: getattr(kv, part) * kv.page_size_tokens for r, kv in with_kv.items()}
            yield gauge(name, f"KV tokens: {part}", values)
        yield from self._tiers(ranks)
        places = GaugeMetricFamily(
            "sglang:place_items", "Items in flight, by place", labels=["dp_rank", "place"]
        )
        for rank in ranks:
            for place in PLACES:
                places.add_metric([str(rank.dp_rank), place], getattr(rank.places, place))
        yield places
        held = GaugeMetricFamily("sglang:num_held_reqs", "Requests held at the frontend")
        held.add_metric([], frontend.requests.num_held)
        yield held
        pending = GaugeMetricFamily("sglang:operation_pending", "1 while an operation is pending")
        pending.add_metric([], float(frontend.operations.pending() is not None))
        yield pending

    def _tiers(self, ranks: list[RankView]) -> Iterable[Metric]:
        """L2 and L3; nothing where the hierarchical cache is off."""
        for name, part in (
            ("hicache_host_total_tokens", "total_pages"),
            ("hicache_host_used_tokens", "used_pages"),
            ("hicache_host_evictable_tokens", "evictable_pages"),
        ):
            family = GaugeMetricFamily(f"sglang:{name}", f"L2: {part}", labels=["dp_rank"])
            for rank in ranks:
                if rank.host is not None and rank.kv is not None:
                    tokens = getattr(rank.host, part) * rank.kv.page_size_tokens
                    family.add_metric([str(rank.dp_rank)], tokens)
            yield family
        labels = ["dp_rank", "storage_backend"]
        closed = GaugeMetricFamily(
            "sglang:storage_available", "1 while the breaker is closed", labels=labels
        )
        for rank in ranks:
            if rank.storage is not None:
                names = [str(rank.dp_rank), str(rank.storage.backend)]
                closed.add_metric(names, float(rank.storage.breaker is Breaker.CLOSED))
        yield closed
        for name, part in (
            ("prefetched_tokens", "hit_pages"),
            ("backuped_tokens", "written_pages"),
        ):
            counter = CounterMetricFamily(f"sglang:{name}", "Tokens: " + part, labels=labels)
            for rank in ranks:
                if rank.storage is not None and rank.kv is not None:
                    names = [str(rank.dp_rank), str(rank.storage.backend)]
                    tokens = getattr(rank.storage, part) * rank.kv.page_size_tokens
                    counter.add_metric(names, tokens)
            yield counter
        for part in _STORAGE_COUNTERS:
            counter = CounterMetricFamily(f"sglang:storage_{part}", f"L3: {part}", labels=labels)
            for rank in ranks:
                if rank.storage is not None:
                    names = [str(rank.dp_rank), str(rank.storage.backend)]
                    counter.add_metric(names, getattr(rank.storage, part))
            yield counter

    def _counters(self) -> Iterable[Metric]:
        frontend = self._frontend
        for name, (part, text) in _COUNTERS.items():
            family = CounterMetricFamily(f"sglang:{name}", text, labels=["dp_rank"])
            for rank, stats in frontend.stats.items():
                family.add_metric([str(rank)], getattr(stats, part))
            yield family
        tiers = CounterMetricFamily(
            "sglang:cached_tokens_by_tier", "Prompt tokens found", labels=["dp_rank", "tier"]
        )
        for rank, stats in frontend.stats.items():
            for tier in ("device", "host", "storage"):
                tiers.add_metric([str(rank), tier], getattr(stats.hit_tokens, tier))
        yield tiers
        received = CounterMetricFamily("sglang:http_received_requests", "Requests taken")
        received.add_metric([], frontend.requests.num_received_total)
        yield received


def exposition(frontend: Frontend) -> str:
    """The whole text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(frontend))
    latencies = frontend.requests.latencies.registry
    return (generate_latest(registry) + generate_latest(latencies)).decode()

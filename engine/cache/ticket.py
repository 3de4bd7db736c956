"""How far one waiting request is with its cached prefix: fetched, loaded, ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from engine.cache.storage.worker import Get
from engine.protocol import PrefetchPolicy, StorageConfig


class Stage(StrEnum):
    """Where a request stands before it can be admitted."""

    NEW = "new"
    FETCHING = "fetching"  # storage → host
    FETCHED = "fetched"
    LOADING = "loading"  # host → device
    READY = "ready"


@dataclass(slots=True)
class Fetch:
    """Pages that are read from storage for one prompt, and maybe for others that share it."""

    get: Get
    token_ids: Sequence[int]  # from the start of the prompt to the end of the last page
    start: int  # page that the first one of `get` is
    namespace: str
    began_at: float
    until: float  # no request waits longer
    is_taken: bool = False  # what had come is in the tree
    num_taken: int = 0  # pages that came

    @property
    def num_pages(self) -> int:
        """Pages that were asked for."""
        return len(self.get.keys)


@dataclass(slots=True)
class Ticket:
    """One request's; kept until it is admitted."""

    stage: Stage = Stage.NEW
    fetch: Fetch | None = None
    loaded_pages: int = 0  # that were copied to the device for it
    fetched_pages: int = 0  # that came from storage for it


def wait_until(config: StorageConfig, policy: PrefetchPolicy, num_tokens: int, now: float) -> float:
    """When a request stops waiting for its pages."""
    longest = now + config.prefetch_timeout_max
    match policy:
        case PrefetchPolicy.BEST_EFFORT:
            return now
        case PrefetchPolicy.WAIT_COMPLETE:
            return longest
        case PrefetchPolicy.TIMEOUT:
            share = config.prefetch_timeout_per_ki_token * num_tokens / 1024
            return min(longest, now + config.prefetch_timeout_base + share)

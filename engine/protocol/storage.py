"""The KV cache's lower tiers as messages name them: policies, backends, what a rank says of one.

L1 is the device, L2 the host, L3 a storage backend. No struct in here ever holds a secret.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from engine.protocol.base import Struct

MAX_CONFIG_CHARS = 65_536
ConfigText = Annotated[str, msgspec.Meta(max_length=MAX_CONFIG_CHARS)]
SecretsName = Annotated[
    str, msgspec.Meta(max_length=64, pattern=r"^([0-9A-Za-z_:-][0-9A-Za-z_.:-]*)?$(?!\n)")
]
ConfigId = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{16})?$(?!\n)")]


class StorageBackend(StrEnum):
    """A kind of L3."""

    FILE = "file"
    VALKEY = "valkey"
    MOONCAKE = "mooncake"
    NIXL = "nixl"
    AIBRIX = "aibrix"
    HF3FS = "hf3fs"
    EIC = "eic"


# Written against the interface that the vendor publishes, and tried on a stand-in only.
EXPERIMENTAL_BACKENDS = frozenset({StorageBackend.HF3FS, StorageBackend.EIC})


class WritePolicy(StrEnum):
    """When a page is copied from the device to the host, and on to storage."""

    WRITE_THROUGH = "write_through"  # as soon as it is whole
    WRITE_THROUGH_SELECTIVE = "write_through_selective"  # once it was used again
    WRITE_BACK = "write_back"  # when it leaves the device


class PrefetchPolicy(StrEnum):
    """How long a request waits for pages from storage."""

    BEST_EFFORT = "best_effort"  # not at all: it takes what has come when it could run
    WAIT_COMPLETE = "wait_complete"  # for all of them, prefetch_timeout_max at most
    TIMEOUT = "timeout"  # prefetch_timeout_base, and a share for each Ki tokens


class HostLayout(StrEnum):
    """How a page lies in host memory: what is next to what."""

    LAYER_FIRST = "layer_first"  # a layer's pages together: no page is one run of bytes
    PAGE_FIRST = "page_first"  # a page's keys of all layers, then its values
    PAGE_FIRST_DIRECT = "page_first_direct"  # a page's layers, keys and values of each together
    PAGE_HEAD = "page_head"  # a page's heads, all layers of each together


class Breaker(StrEnum):
    """Whether a rank uses its storage backend."""

    CLOSED = "closed"  # it does
    OPEN = "open"  # not now: it failed too often; reads are misses, writes are dropped
    HALF_OPEN = "half_open"  # it tries a page at a time
    STALLED = "stalled"  # a call of it does not come back; nothing more is asked of it


class CachePolicies(Struct, frozen=True, kw_only=True):
    """What decides on copies between tiers; outlives an attachment."""

    write_policy: WritePolicy = WritePolicy.WRITE_THROUGH
    prefetch_policy: PrefetchPolicy = PrefetchPolicy.TIMEOUT


class StorageView(Struct, frozen=True, kw_only=True):
    """An attached backend. Configs are as they were given, byte for byte, where they hold no
    secret; else a secret's value is replaced by its fingerprint."""

    backend: StorageBackend
    config: ConfigText = ""  # a JSON object, or "" for none
    rank_configs: dict[str, ConfigText] = {}  # DP rank → JSON object laid over `config`
    config_id: ConfigId = ""  # the same for the same settings, secrets included


class RankStorage(Struct, frozen=True, kw_only=True):
    """What a rank says of its backend. Counters grow from the attach on; pages are KV pages."""

    backend: StorageBackend
    config_id: str
    config_hash: str  # of this rank's own settings, its overrides and secrets included
    is_open: bool = True  # False: it could not be opened; the rank serves without, and tries on
    breaker: Breaker = Breaker.CLOSED
    retry_in_s: float | None = None  # until an open breaker lets a page through
    hit_pages: int = 0  # found by a prefetch, and loaded
    miss_pages: int = 0  # looked for and not there, or not whole
    corrupt_pages: int = 0  # found, and not what was written; a part of the misses
    read_bytes: int = 0
    written_pages: int = 0
    written_bytes: int = 0
    dropped_pages: int = 0  # should have been written and were not
    errors: int = 0
    last_error: str = ""
    last_error_age_s: float | None = None
    hit_rate: float | None = None  # hit ÷ looked for, of the last minute
    read_bytes_per_s: float = 0.0  # of the last 10 s
    write_bytes_per_s: float = 0.0
    stored_pages: int | None = None  # by this rank, where the backend counts them
    used_bytes: int | None = None
    capacity_bytes: int | None = None
    drifts: bool = False  # it is not what this rank should have


class HostUsage(Struct, frozen=True, kw_only=True):
    """Pages of one rank's L2: free + evictable + locked + held = total, always."""

    total_pages: int
    free_pages: int
    evictable_pages: int
    locked_pages: int  # in the tree, and in use by a copy
    held_pages: int  # of a copy alone
    page_bytes: int
    layout: HostLayout

    @property
    def used_pages(self) -> int:
        """Pages that hold something."""
        return self.total_pages - self.free_pages


class StorageRoot(Struct, frozen=True, kw_only=True):
    """A folder under which a backend may keep files."""

    label: str
    path: str


class BackendView(Struct, frozen=True, kw_only=True):
    """A backend that this engine knows. `problem` says why it cannot be attached here and now, as
    far as that is known without trying: a package that is missing, a layout that it refuses."""

    backend: StorageBackend
    problem: str = ""

"""Words and records that every message shares: places, modes, outcomes, views.

Times are seconds on the engine's monotonic clock unless a name says otherwise; `_pages` are KV
pages.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from engine.protocol.base import Struct
from engine.protocol.storage import CachePolicies, HostUsage, RankStorage, StorageView
from engine.protocol.weights import Staging, WeightsView

PROTOCOL_VERSION = 3

# The longest a waiting operation may be asked to wait, in seconds (one day).
MAX_TIMEOUT_S = 86_400.0

# Where work can sit on a rank, in the order that every reply, page and metric prints them.
PLACES = (
    "running",
    "chunked_prefill",
    "waiting",
    "grammar",
    "results",
    "l1_backup",
    "l2_load",
    "l3_prefetch",
    "l3_backup",
)

OperationId = Annotated[
    str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z_.:-]+$(?!\n)")
]
ShortText = Annotated[str, msgspec.Meta(max_length=4096)]


class Mode(StrEnum):
    """What an operation does to requests while it waits for idle; operation-protocol.md § 2."""

    IF_IDLE = "if_idle"
    WAIT = "wait"
    DRAIN = "drain"
    RETRACT = "retract"
    ABORT = "abort"


class OperationKind(StrEnum):
    """What an operation changes."""

    FLUSH_CACHE = "flush_cache"
    UPDATE_WEIGHTS_FROM_DISK = "update_weights_from_disk"
    UPDATE_WEIGHTS_FROM_TENSOR = "update_weights_from_tensor"
    UPDATE_WEIGHTS_FROM_DISTRIBUTED = "update_weights_from_distributed"
    UPDATE_WEIGHT_VERSION = "update_weight_version"
    PAUSE_GENERATION = "pause_generation"
    CONTINUE_GENERATION = "continue_generation"
    ABORT_REQUESTS = "abort_requests"
    RELEASE_MEMORY = "release_memory"
    RESUME_MEMORY = "resume_memory"
    ATTACH_STORAGE_BACKEND = "attach_storage_backend"
    DETACH_STORAGE_BACKEND = "detach_storage_backend"
    CLEAR_STORAGE_BACKEND = "clear_storage_backend"
    SET_CACHE_POLICIES = "set_cache_policies"
    REPAIR = "repair"


class Outcome(StrEnum):
    """How an operation ended. Final and unique."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    PARTIAL = "partial"


class Phase(StrEnum):
    """Where an open operation stands."""

    PREPARING = "preparing"
    WAITING_FOR_IDLE = "waiting for idle"
    COMMITTING = "committing"
    COMPENSATING = "compensating"
    CANCELLING = "cancelling"


class RankState(StrEnum):
    """What one rank did for an operation, or where it stands in it."""

    NOT_STARTED = "not_started"
    WAITING = "waiting"
    PARKED = "parked"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    COMPENSATED = "compensated"
    UNREACHABLE = "unreachable"
    UNKNOWN = "unknown"


class QueryStatus(StrEnum):
    """What the journal knows of an operation id."""

    NEVER = "never"  # not seen; sealed now, so it will never run
    OPEN = "open"
    FINISHED = "finished"
    TOO_OLD = "too_old"


class Places(Struct, frozen=True, kw_only=True):
    """How many items each place of a rank holds; all zero is fully idle."""

    running: int = 0
    chunked_prefill: int = 0
    waiting: int = 0
    grammar: int = 0
    results: int = 0
    l1_backup: int = 0
    l2_load: int = 0
    l3_prefetch: int = 0
    l3_backup: int = 0

    @property
    def is_idle(self) -> bool:
        """True when no place holds anything."""
        return not any(getattr(self, name) for name in PLACES)

    def __str__(self) -> str:
        return " ".join(f"{name}={getattr(self, name)}" for name in PLACES)


class KVUsage(Struct, frozen=True, kw_only=True):
    """Pages of one rank's device pool: free + evictable + locked + held = total, always."""

    total_pages: int
    free_pages: int
    evictable_pages: int
    locked_pages: int
    held_pages: int
    page_size_tokens: int

    @property
    def used_pages(self) -> int:
        """Pages that no eviction could free now."""
        return self.locked_pages + self.held_pages


class RankView(Struct, frozen=True, kw_only=True):
    """The newest report of one DP rank, as the frontend knows it."""

    dp_rank: int
    incarnation: int
    online: bool  # alive, and its newest report is fresh
    proven: bool  # its reported state equals the desired state: it may be routed to
    idle: bool
    places: Places
    weight_version: str
    storage_backend: str | None
    kv: KVUsage | None  # None until the rank has reported once
    hit_rate: float | None  # cached ÷ prompt tokens of the last minute; None when there were none
    decode_tokens_per_s: float
    running: int
    waiting: int
    age_s: float  # of the report, when this view was made
    violations: int = 0  # times the page invariant did not hold at idle
    weight_checksum: str = ""
    condition: str = ""  # why it is not proven: down, starting, converging, fenced; "" when it is
    note: str = ""  # what it said about that, e.g. why it could not load the desired weights
    prefill_tokens_per_s: float | None = None  # while it last prefilled; None when it never did
    staging: Staging | None = None
    host: HostUsage | None = None  # L2; None where the hierarchical cache is off
    storage: RankStorage | None = None  # L3; None where nothing is attached


class RankResult(Struct, frozen=True, kw_only=True):
    """One rank's part in an operation."""

    dp_rank: int
    state: RankState
    message: str = ""
    places: Places | None = None
    interrupted: int = 0  # requests that it retracted or aborted for this operation
    staging: Staging | None = None  # of a weight update, while it stages and as it ended
    effect_s: float | None = None  # how long its commit took


class OperationView(Struct, frozen=True, kw_only=True):
    """An open operation, for lists and live pages."""

    op_id: str
    kind: OperationKind
    mode: Mode
    phase: Phase
    attempt: int
    timeout_s: float
    started_clock_s: float
    deadline_clock_s: float
    remaining_s: float  # until the deadline, when this view was made; never negative
    held_requests: int
    awaited_ranks: list[int]
    ranks: list[RankResult]
    requested_by: str = ""
    held_since_clock_s: float | None = None  # when requests began to be held
    staged_clock_s: float | None = None  # when every rank had staged
    weights: WeightsView | None = None  # what it is to serve, as far as that is known
    storage: StorageView | None = None  # the backend that will be attached


class OperationResult(Struct, frozen=True, kw_only=True):
    """How an operation ended, on every rank. The same bytes each time it is asked for."""

    op_id: str
    kind: OperationKind
    mode: Mode
    outcome: Outcome
    message: str  # one sentence; names the busy places where that is the reason
    ranks: list[RankResult]
    started_clock_s: float
    finished_clock_s: float
    epoch: str
    weights: WeightsView | None = None  # what the engine serves now, where that could change
    weights_before: WeightsView | None = None
    storage: StorageView | None = None  # attached now, where that could change
    storage_before: StorageView | None = None
    policies: CachePolicies | None = None  # in force now, where they could change
    policies_before: CachePolicies | None = None
    interrupted: int = 0  # requests that were retracted or aborted
    held_requests: int = 0  # that waited when the end was recorded
    # From the first rank that stopped admitting, or the first held request, to the recorded end.
    pause_s: float | None = None
    staged_s: float | None = None  # from the start until every rank was prepared
    digest: str = ""  # of what was asked: an id that is used again must ask for the same

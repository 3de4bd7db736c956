"""The closed sets of words of the console, and which job state may follow which.

Knows nothing of rows or engines. Transitions are those of operation-protocol.md § 5, no more.
"""

from __future__ import annotations

from types import MappingProxyType

from django.db.models import TextChoices


class JobKind(TextChoices):
    """What a job asks of an engine."""

    FLUSH_CACHE = "flush_cache", "Flush cache"
    UPDATE_WEIGHTS_FROM_DISK = "update_weights_from_disk", "Update weights from disk"
    UPDATE_WEIGHTS_FROM_TENSOR = (
        "update_weights_from_tensor",
        "Update weights from uploaded tensors",
    )
    UPDATE_WEIGHTS_FROM_DISTRIBUTED = (
        "update_weights_from_distributed",
        "Update weights from a trainer",
    )
    UPDATE_WEIGHT_VERSION = "update_weight_version", "Name the weight version"
    PAUSE_GENERATION = "pause_generation", "Pause generation"
    CONTINUE_GENERATION = "continue_generation", "Continue generation"
    ABORT_REQUESTS = "abort_requests", "Abort requests"
    RELEASE_MEMORY = "release_memory", "Release memory"
    RESUME_MEMORY = "resume_memory", "Resume memory"
    ATTACH_STORAGE_BACKEND = "attach_storage_backend", "Attach a storage backend"
    DETACH_STORAGE_BACKEND = "detach_storage_backend", "Detach the storage backend"
    CLEAR_STORAGE_BACKEND = "clear_storage_backend", "Delete what the storage backend holds"
    SET_CACHE_POLICIES = "set_cache_policies", "Set cache policies"
    REPAIR = "repair", "Repair"


class JobState(TextChoices):
    """Where a job stands in the job protocol."""

    ACCEPTED = "accepted", "accepted"
    CLAIMED = "claimed", "claimed"
    DISPATCHED = "dispatched", "dispatched"
    RECONCILING = "reconciling", "reconciling"
    SUCCEEDED = "succeeded", "succeeded"
    FAILED = "failed", "failed"
    PARTIAL = "partial", "partial"
    EXPIRED = "expired", "expired"
    CANCELLED = "cancelled", "cancelled"
    INTERRUPTED = "interrupted", "interrupted"


class JobPhase(TextChoices):
    """The word shown for an open job; a terminal job has none and shows its state."""

    QUEUED = "queued", "queued"
    BLOCKED = "blocked", "blocked"
    PREPARING = "preparing", "preparing"
    WAITING_FOR_IDLE = "waiting for idle", "waiting for idle"
    COMMITTING = "committing", "committing"
    VERIFYING = "verifying", "verifying"
    COMPENSATING = "compensating", "compensating"
    CANCELLING = "cancelling", "cancelling"
    UNKNOWN = "unknown", "unknown"


class RankState(TextChoices):
    """What one rank did for a job; the engine's own words."""

    NOT_STARTED = "not_started", "not started"
    WAITING = "waiting", "waiting"
    PARKED = "parked", "parked"
    SUCCEEDED = "succeeded", "ok"
    FAILED = "failed", "failed"
    COMPENSATED = "compensated", "compensated"
    UNREACHABLE = "unreachable", "unreachable"
    UNKNOWN = "unknown", "unknown"


class Mode(TextChoices):
    """What an operation does to requests while it waits for idle; operation-protocol.md § 2."""

    IF_IDLE = "if_idle", "if idle"
    WAIT = "wait", "wait"
    DRAIN = "drain", "drain"
    RETRACT = "retract", "retract"
    ABORT = "abort", "abort"


class OnConflict(TextChoices):
    """What a job does when another holds its engine."""

    REFUSE = "refuse", "refuse"
    QUEUE = "queue", "queue"


class Follow(TextChoices):
    """Why a job follows another one."""

    RETRY = "retry", "retry"
    UNDO = "undo", "undo"


class WeightSource(TextChoices):
    """How weights came to an engine; the engine's own words."""

    START = "start", "at start"
    DISK = "disk", "disk"
    TENSOR = "tensor", "tensor upload"
    DISTRIBUTED = "distributed", "trainer group"


class Via(TextChoices):
    """The surface that a request came through."""

    UI = "ui", "page"
    API = "api", "API"
    CLI = "cli", "command line"
    SYSTEM = "system", "the console itself"


class AuditStage(TextChoices):
    """An entry's place in an act: asked for, moved, ended, or something beside."""

    INTENT = "intent", "intent"
    TRANSITION = "transition", "transition"
    OUTCOME = "outcome", "outcome"
    NOTE = "note", "note"


# Staged on every rank while it serves, then swapped on all or none.
WEIGHT_UPDATES = frozenset(
    {
        JobKind.UPDATE_WEIGHTS_FROM_DISK,
        JobKind.UPDATE_WEIGHTS_FROM_TENSOR,
        JobKind.UPDATE_WEIGHTS_FROM_DISTRIBUTED,
    }
)
# The engine prepares these for long, beside serving: their deadline begins when that has ended.
STAGED_KINDS = WEIGHT_UPDATES | {JobKind.ATTACH_STORAGE_BACKEND}
# What may change which weights a rank serves, or how they are called.
WEIGHT_KINDS = WEIGHT_UPDATES | {JobKind.UPDATE_WEIGHT_VERSION, JobKind.REPAIR}
# What may change which storage backend (L3) is attached, what is in it, or what decides on copies.
STORAGE_KINDS = frozenset(
    {
        JobKind.ATTACH_STORAGE_BACKEND,
        JobKind.DETACH_STORAGE_BACKEND,
        JobKind.CLEAR_STORAGE_BACKEND,
        JobKind.SET_CACHE_POLICIES,
    }
)
# These wait for idle, in a mode that the asker chooses; the others take effect at once. A detach
# that is forced does not wait either.
WAITING_KINDS = (
    WEIGHT_UPDATES
    | {JobKind.FLUSH_CACHE, JobKind.RELEASE_MEMORY}
    | STORAGE_KINDS - {JobKind.SET_CACHE_POLICIES}
)
# Carried out while another one waits: it holds no engine, and none holds it up.
SHARED_KINDS = frozenset({JobKind.ABORT_REQUESTS})

TERMINAL_STATES = frozenset(
    {
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.PARTIAL,
        JobState.EXPIRED,
        JobState.CANCELLED,
        JobState.INTERRUPTED,
    }
)
OPEN_STATES = frozenset(JobState) - TERMINAL_STATES
# In these a job may have, or may yet have, an effect: one such job an engine.
HOLDING_STATES = frozenset({JobState.CLAIMED, JobState.DISPATCHED, JobState.RECONCILING})
# In these nothing was sent, so a job can end with provably no effect.
UNSENT_STATES = frozenset({JobState.ACCEPTED, JobState.CLAIMED})

TRANSITIONS = MappingProxyType(
    {
        JobState.ACCEPTED: frozenset({JobState.CLAIMED, JobState.CANCELLED, JobState.EXPIRED}),
        JobState.CLAIMED: frozenset(
            {
                JobState.ACCEPTED,
                JobState.DISPATCHED,
                JobState.FAILED,  # what it was to bring along is missing or refused; not submitted
                JobState.CANCELLED,
                JobState.EXPIRED,
            }
        ),
        JobState.DISPATCHED: frozenset(
            {
                JobState.SUCCEEDED,
                JobState.FAILED,
                JobState.PARTIAL,
                JobState.EXPIRED,
                JobState.CANCELLED,
                JobState.RECONCILING,
            }
        ),
        JobState.RECONCILING: TERMINAL_STATES,
        **{state: frozenset[JobState]() for state in TERMINAL_STATES},
    }
)

# Force takes the next harsher mode; operation-protocol.md § 2.
HARSHER = MappingProxyType(
    {
        Mode.IF_IDLE: Mode.DRAIN,
        Mode.WAIT: Mode.DRAIN,
        Mode.DRAIN: Mode.ABORT,
        Mode.RETRACT: Mode.ABORT,
    }
)

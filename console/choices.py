"""The closed sets of words of the console, and which job state may follow which.

Knows nothing of rows or engines. Transitions are those of operations.md § 5, no more.
"""

from __future__ import annotations

from types import MappingProxyType

from django.db.models import TextChoices


class JobKind(TextChoices):
    """What a job asks of an engine."""

    FLUSH_CACHE = "flush_cache", "Flush cache"


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
    """What an operation does to requests while it waits for idle; operations.md § 2."""

    IF_IDLE = "if_idle", "if idle"
    WAIT = "wait", "wait"
    DRAIN = "drain", "drain"
    RETRACT = "retract", "retract"
    ABORT = "abort", "abort"


class OnConflict(TextChoices):
    """What a job does when another holds its engine."""

    REFUSE = "refuse", "refuse"
    QUEUE = "queue", "queue"


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
            {JobState.ACCEPTED, JobState.DISPATCHED, JobState.CANCELLED, JobState.EXPIRED}
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

# Force takes the next harsher mode; operations.md § 2.
HARSHER = MappingProxyType(
    {
        Mode.IF_IDLE: Mode.DRAIN,
        Mode.WAIT: Mode.DRAIN,
        Mode.DRAIN: Mode.ABORT,
        Mode.RETRACT: Mode.ABORT,
    }
)

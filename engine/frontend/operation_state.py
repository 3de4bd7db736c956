"""What the coordinator keeps: the pending operation, what a rank last said, the actions it asks.

Data only; the rules are in coordinator.py and rank_table.py.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import msgspec

from engine.config import OperationTimes
from engine.frontend.journal_records import Decided, JournalIndex, Record, Started
from engine.ipc.messages import ControlMessage, ServingState, View
from engine.protocol import (
    WEIGHT_UPDATES,
    Mode,
    Operation,
    OperationKind,
    OperationResult,
    Phase,
    Places,
    Staging,
    UpdateWeightsFromDistributed,
    parks,
)

TIER_OPERATIONS = frozenset(
    {
        OperationKind.ATTACH_STORAGE_BACKEND,
        OperationKind.DETACH_STORAGE_BACKEND,
        OperationKind.CLEAR_STORAGE_BACKEND,
        OperationKind.SET_CACHE_POLICIES,
    }
)
HOLDING_MODES = frozenset({Mode.DRAIN, Mode.RETRACT, Mode.ABORT})
# What `force` turns a mode into.
FORCED = {
    Mode.IF_IDLE: Mode.DRAIN,
    Mode.WAIT: Mode.DRAIN,
    Mode.DRAIN: Mode.ABORT,
    Mode.RETRACT: Mode.ABORT,
    Mode.ABORT: Mode.ABORT,
}


class JournalLike(Protocol):
    """Durable, ordered records."""

    index: JournalIndex

    def reserve(self) -> None:
        """Room for one operation's records. Raises JournalFullError."""

    def append(self, record: Record) -> None:
        """Durable when it returns. Raises JournalFullError."""


@dataclass(slots=True, frozen=True)
class SendTo:
    """Send this to that rank."""

    rank: int
    message: ControlMessage


@dataclass(slots=True, frozen=True)
class Kill:
    """Have `launch` kill this incarnation: it was silent for a whole budget."""

    rank: int
    inc: int


@dataclass(slots=True, frozen=True)
class Ended:
    """An operation's end is on disk: reply to whoever asked."""

    result: OperationResult


Action = SendTo | Kill | Ended


class Verdict(StrEnum):
    """How waiting for idle ended."""

    READY = "ready"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


@dataclass(slots=True)
class Current:
    """The operation that runs, from the coordinator's side."""

    op: int
    op_id: str
    operation: Operation
    mode: Mode
    att: int
    timeout_s: float
    started_at: float
    deadline: float
    start_by: float
    incs: dict[int, int]
    old: ServingState
    new: ServingState
    requested_by: str = ""
    digest: str = ""
    phase: Phase = Phase.PREPARING
    cancelled: bool = False
    changed: bool = False  # extended or forced: a new attempt is due
    messages: dict[int, str] = field(default_factory=dict)
    refused: dict[int, Places | None] = field(default_factory=dict)
    parked: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)  # said that they could not commit
    fault: str = ""
    faulted_at: float | None = None  # a rank refused, or was lost
    prepared: dict[int, ServingState] = field(default_factory=dict)  # as each rank has it
    interrupted: dict[int, int] = field(default_factory=dict)
    effect_s: dict[int, float] = field(default_factory=dict)
    staging: dict[int, Staging] = field(default_factory=dict)
    patience_s: float = 0.0  # how long it may wait for idle
    stage_until: float = 0.0
    prepared_at: float | None = None
    held_since: float | None = None  # a rank stopped admitting, or requests began to be held

    @property
    def has_inverse(self) -> bool:
        """A flush cannot be taken back, and changes no state that an undo would restore."""
        return self.old != self.new

    @property
    def parks(self) -> bool:
        """Every rank is idle, and admits nothing, when it commits."""
        return parks(self.operation)

    @property
    def stages(self) -> bool:
        """It prepares for long; the caller's deadline counts from the end of that."""
        return self.operation.kind in WEIGHT_UPDATES or self.opens

    @property
    def opens(self) -> bool:
        """It opens something on every rank, and each rank's reason for refusing is wanted."""
        return self.operation.kind is OperationKind.ATTACH_STORAGE_BACKEND

    def staging_s(self, times: OperationTimes) -> float:
        """How long all ranks may take to be prepared, whatever the caller's deadline."""
        if not self.stages:
            return 0.0
        return times.open_s if self.opens else times.stage_s

    @property
    def changes_tiers(self) -> bool:
        """It is about the lower tiers of the cache, and not about weights."""
        return self.operation.kind in TIER_OPERATIONS

    @property
    def is_repair(self) -> bool:
        """It converges ranks instead of changing them."""
        return self.operation.kind is OperationKind.REPAIR


@dataclass(slots=True)
class Seen:
    """The newest message of a rank."""

    inc: int
    n: int
    at: float
    view: View
    places: Places | None


def started(current: Current) -> Started:
    """What the journal keeps of an operation that begins: a list of every tensor is not needed to
    end it."""
    operation = current.operation
    if isinstance(operation, UpdateWeightsFromDistributed):
        operation = msgspec.structs.replace(operation, names=[], dtypes=[], shapes=[])
    return Started(
        op=current.op,
        op_id=current.op_id,
        operation=operation,
        mode=current.mode,
        att=current.att,
        timeout_s=current.timeout_s,
        incs=current.incs,
        old=current.old,
        new=current.new,
        requested_by=current.requested_by,
        digest=current.digest,
    )


def digest_of(operation: Operation) -> str:
    """What was asked for, in short: the same for the same, whatever its upload or session."""
    fields = msgspec.to_builtins(operation)
    for name in ("upload_id", "session"):
        fields.pop(name, None)
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()[:32]


def recovered(record: Started, decided: Decided | None, att: int, now: float) -> Current:
    """An operation of an earlier frontend, to be ended by this one."""
    return Current(
        op=record.op,
        op_id=record.op_id,
        operation=record.operation,
        mode=record.mode,
        att=att,
        timeout_s=record.timeout_s,
        started_at=now,
        deadline=now,
        start_by=now,
        incs=record.incs,
        old=record.old,
        new=(decided.new if decided is not None else None) or record.new,
        requested_by=record.requested_by,
        digest=record.digest,
    )

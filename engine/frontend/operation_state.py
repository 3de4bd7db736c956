"""What the coordinator keeps: the pending operation, what a rank last said, the actions it asks.

Data only; the rules are in coordinator.py and rank_table.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from engine.frontend.journal_records import JournalIndex, Record
from engine.ipc.messages import ControlMessage, ServingState, View
from engine.protocol import Mode, Operation, OperationResult, Phase, Places

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
    phase: Phase = Phase.PREPARING
    cancelled: bool = False
    changed: bool = False  # extended or forced: a new attempt is due
    messages: dict[int, str] = field(default_factory=dict)
    refused: dict[int, Places | None] = field(default_factory=dict)
    parked: set[int] = field(default_factory=set)
    fault: str = ""

    @property
    def has_inverse(self) -> bool:
        """A flush cannot be taken back, and changes no state that an undo would restore."""
        return self.old != self.new


@dataclass(slots=True)
class Seen:
    """The newest message of a rank."""

    inc: int
    n: int
    at: float
    view: View
    places: Places | None

"""What the journal remembers, and the index over it: pure, so that a simulation can use it.

Order of durable writes: EPOCH before the first message of a start, STARTED before PREPARE, DECIDED
before the first COMMIT, FINISHED before the reply, the release and the dropping of old copies.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import msgspec

from engine.ipc.messages import ServingState
from engine.protocol import Mode, Operation, OperationResult


class Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every record."""


class Identity(Struct, frozen=True, kw_only=True, tag="identity"):
    """First record of a journal: which engine this is."""

    engine_id: str
    forgotten_until_ms: int = 0  # see JournalIndex.is_too_old
    format: int = 1


class EpochRecord(Struct, frozen=True, kw_only=True, tag="epoch"):
    """A frontend started."""

    number: int
    nonce: str

    @property
    def text(self) -> str:
        """How commands name this epoch."""
        return f"{self.number}-{self.nonce}"


class Started(Struct, frozen=True, kw_only=True, tag="started"):
    """An operation was taken: nothing has been sent yet."""

    op: int
    op_id: str
    operation: Operation
    mode: Mode
    att: int
    timeout_s: float
    incs: dict[int, int]
    old: ServingState
    new: ServingState
    requested_by: str = ""
    digest: str = ""


class Decided(Struct, frozen=True, kw_only=True, tag="decided"):
    """No turning back (commit), or every rank is to take it back (undo)."""

    op: int
    verdict: Literal["commit", "undo"]
    att: int
    new: ServingState | None = None  # as every rank has prepared it; None: as it was started


class Finished(Struct, frozen=True, kw_only=True, tag="finished"):
    """The end of an operation; `result` is what every later question gets."""

    op: int
    desired: ServingState
    result: OperationResult


class Noted(Struct, frozen=True, kw_only=True, tag="noted"):
    """The end of something that was done at once, beside the exclusive operation."""

    result: OperationResult


class Adopted(Struct, frozen=True, kw_only=True, tag="adopted"):
    """What the engine serves because it was started so: no operation led to it.

    `launch` names the start of the whole engine, `base_path` the folder that it was given.
    """

    desired: ServingState
    launch: str
    base_path: str


class Sealed(Struct, frozen=True, kw_only=True, tag="sealed"):
    """This id was asked about before it was seen: it will never run."""

    op_id: str


Record = Identity | EpochRecord | Started | Decided | Finished | Noted | Adopted | Sealed


class JournalFullError(OSError):
    """A record could not be made durable; the operation is refused."""


class JournalIndex:
    """What follows from the records so far. `apply` them in order; bounded by `memo_size`."""

    def __init__(self, *, initial: ServingState, memo_size: int = 10_000) -> None:
        self.engine_id = ""
        self.epoch: EpochRecord | None = None
        self.desired = initial
        self.adopted: Adopted | None = None
        self.awaits_adoption = False  # this start's weights are not recorded yet
        self.open: Started | None = None
        self.decided: Decided | None = None
        self.last_op = 0
        self.last_ended_op = 0
        self.results: OrderedDict[str, OperationResult] = OrderedDict()
        self.sealed: OrderedDict[str, None] = OrderedDict()
        self.forgotten_until_ms = 0  # ids made before it may have been forgotten
        self._memo_size = memo_size

    @property
    def is_adopted(self) -> bool:
        """It is known which weights are desired, by their checksum."""
        return bool(self.desired.weights.checksum) and not self.awaits_adoption

    def apply(self, record: Record) -> None:
        """Take one record into account."""
        match record:
            case Identity():
                self.engine_id = record.engine_id
                self.forgotten_until_ms = record.forgotten_until_ms
            case EpochRecord():
                self.epoch = record
            case Started():
                self.open, self.decided = record, None
                self.last_op = max(self.last_op, record.op)
            case Decided():
                self.decided = record
            case Finished():
                self.open = self.decided = None
                self.desired = record.desired
                self.last_op = max(self.last_op, record.op)
                self.last_ended_op = max(self.last_ended_op, record.op)
                self.results[record.result.op_id] = record.result
                self._forget(self.results)
            case Noted():
                self.results[record.result.op_id] = record.result
                self._forget(self.results)
            case Adopted():
                self.adopted, self.desired = record, record.desired
                self.awaits_adoption = False
            case Sealed():
                self.sealed[record.op_id] = None
                self._forget(self.sealed)

    def _forget(self, memo: OrderedDict[str, OperationResult] | OrderedDict[str, None]) -> None:
        while len(memo) > self._memo_size:
            op_id, _ = memo.popitem(last=False)
            made_ms = made_at_ms(op_id)
            if made_ms is not None:
                self.forgotten_until_ms = max(self.forgotten_until_ms, made_ms)

    def is_too_old(self, op_id: str) -> bool:
        """True when what this id did may have been forgotten, so it must not run again."""
        made_ms = made_at_ms(op_id)
        return (
            made_ms is not None
            and made_ms <= self.forgotten_until_ms
            and op_id not in self.results
            and op_id not in self.sealed
        )


def made_at_ms(op_id: str) -> int | None:
    """Unix milliseconds in a version 7 UUID (RFC 9562 § 5.7); None for any other id."""
    digits = op_id.replace("-", "")
    if len(digits) != 32 or digits[12] != "7":
        return None
    try:
        return int(digits[:12], 16)
    except ValueError:
        return None

"""What an engine answers over its control socket: Progress (0..n), then exactly one Reply."""

from __future__ import annotations

from engine.protocol.base import Struct
from engine.protocol.errors import ErrorCode
from engine.protocol.events import EngineState, Event
from engine.protocol.types import OperationResult, OperationView, QueryStatus
from engine.protocol.weights import CheckpointView, WeightsRoot


class Welcome(Struct, frozen=True, kw_only=True, tag="welcome"):
    """Answer to Hello. `engine_id` names the journal, `epoch` this start of the frontend."""

    protocol_version: int
    engine_id: str
    epoch: str
    clock_s: float
    dp_size: int
    model: str
    ready: bool  # recovery is over: commands are taken


class Progress(Struct, frozen=True, kw_only=True, tag="progress"):
    """An operation moved. Not the last message of a Submit."""

    operation: OperationView


class Answer(Struct, frozen=True, kw_only=True, tag="answer"):
    """The recorded end of an operation. The last message of a Submit."""

    result: OperationResult


class QueryAnswer(Struct, frozen=True, kw_only=True, tag="query_answer"):
    """What the journal knows; `operation` when open, `result` when finished."""

    op_id: str
    engine_id: str
    status: QueryStatus
    operation: OperationView | None = None
    result: OperationResult | None = None


class OperationList(Struct, frozen=True, kw_only=True, tag="operation_list"):
    """Open operations, then finished ones, newest first."""

    open: list[OperationView]
    finished: list[OperationResult]


class Accepted(Struct, frozen=True, kw_only=True, tag="accepted"):
    """Extend, cancel or force was taken; what it led to comes as Progress and Answer."""

    operation: OperationView


class StateAnswer(Struct, frozen=True, kw_only=True, tag="state"):
    """Answer to Snapshot."""

    state: EngineState


class EventList(Struct, frozen=True, kw_only=True, tag="events"):
    """Answer to Replay. `complete` is false when the ring no longer reaches back that far."""

    events: list[Event]
    complete: bool


class CheckpointList(Struct, frozen=True, kw_only=True, tag="checkpoints"):
    """Answer to ListCheckpoints: the allowed roots, and the folders under them that hold weights.

    For one path: just that folder, with its problem if it has one.
    """

    roots: list[WeightsRoot]
    checkpoints: list[CheckpointView]


class Uploaded(Struct, frozen=True, kw_only=True, tag="uploaded"):
    """Answer to Upload."""

    upload_id: str
    name: str
    received_bytes: int


class SecretsKept(Struct, frozen=True, kw_only=True, tag="secrets_kept"):
    """Answer to KeepSecrets. A fingerprint tells two values apart, and nothing about either."""

    name: str
    fingerprints: dict[str, str]


class Failure(Struct, frozen=True, kw_only=True, tag="failure"):
    """The command was refused; nothing changed."""

    code: ErrorCode
    message: str
    retryable: bool
    holder: str | None = None  # op_id of the operation that holds the engine
    remaining_s: float | None = None


Reply = (
    Welcome
    | Answer
    | QueryAnswer
    | OperationList
    | Accepted
    | StateAnswer
    | EventList
    | CheckpointList
    | Uploaded
    | SecretsKept
    | Failure
)


class Response(Struct, frozen=True, kw_only=True):
    """One frame towards the caller: `id` of the request, and its Progress or Reply."""

    id: str
    body: Progress | Reply

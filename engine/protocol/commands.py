"""What may be asked of an engine over its control socket."""

from __future__ import annotations

from typing import Annotated

import msgspec

from engine.protocol.base import Struct
from engine.protocol.operations import FileName, Operation, UploadId
from engine.protocol.storage import SecretsName
from engine.protocol.types import MAX_TIMEOUT_S, Mode, OperationId, ShortText

MAX_UPLOAD_CHUNK_BYTES = 1 << 19
Timeout = Annotated[float, msgspec.Meta(ge=0, le=MAX_TIMEOUT_S)]


class Hello(Struct, frozen=True, kw_only=True, tag="hello"):
    """First command of a conversation; answered by Welcome."""

    protocol_version: int
    client: ShortText = ""


class Submit(Struct, frozen=True, kw_only=True, tag="submit"):
    """Start an exclusive operation. Answered by Progress (0..n), then one Answer or Failure.

    A repeated `op_id` is not run again: it follows the open operation, or gets the recorded result.
    """

    op_id: OperationId
    epoch: str  # from Welcome; another epoch is refused
    operation: Operation
    mode: Mode
    timeout_s: Timeout
    start_by_clock_s: float  # engine clock; no effect may start after it
    requested_by: ShortText = ""
    request_id: ShortText = ""  # of the request that asked the caller, for the engine's log


class Query(Struct, frozen=True, kw_only=True, tag="query"):
    """Ask what became of an operation. With `seal`, an id never seen will never run."""

    op_id: OperationId
    seal: bool = True


class ListOperations(Struct, frozen=True, kw_only=True, tag="list_operations"):
    """All open operations and the newest finished ones."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50


class Extend(Struct, frozen=True, kw_only=True, tag="extend"):
    """Move the deadline of a waiting operation by `by_s` seconds (negative shortens it)."""

    op_id: OperationId
    by_s: Annotated[float, msgspec.Meta(ge=-MAX_TIMEOUT_S, le=MAX_TIMEOUT_S)]


class Cancel(Struct, frozen=True, kw_only=True, tag="cancel"):
    """End a waiting operation without effect. Refused once the decision to commit is recorded."""

    op_id: OperationId


class Force(Struct, frozen=True, kw_only=True, tag="force"):
    """Take the next harsher mode: if_idle, wait → drain → abort; retract → abort."""

    op_id: OperationId


class Snapshot(Struct, frozen=True, kw_only=True, tag="snapshot"):
    """The engine's state now, with the sequence number of the last event it contains."""


class Replay(Struct, frozen=True, kw_only=True, tag="replay"):
    """Events after `after_seq` of this epoch, as far as the ring still holds them."""

    epoch: str
    after_seq: Annotated[int, msgspec.Meta(ge=0)]


class ListCheckpoints(Struct, frozen=True, kw_only=True, tag="list_checkpoints"):
    """Which weights could be loaded from disk, or whether `path` could."""

    path: ShortText = ""


class Upload(Struct, frozen=True, kw_only=True, tag="upload"):
    """A run of bytes of one file for UpdateWeightsFromTensor. Sent again, it changes nothing.

    Answered by Uploaded, which says how many bytes of the file have come: go on from there.
    """

    upload_id: UploadId
    name: FileName
    offset: Annotated[int, msgspec.Meta(ge=0)]
    data: Annotated[bytes, msgspec.Meta(max_length=MAX_UPLOAD_CHUNK_BYTES)]
    total_bytes: Annotated[int, msgspec.Meta(ge=0)]


class KeepSecrets(Struct, frozen=True, kw_only=True, tag="keep_secrets"):
    """Values that no job, log or event may hold, for an AttachStorage that names them.

    `values` maps a setting, or "RANK.setting" for one rank, to its value. Answered by SecretsKept.
    """

    name: Annotated[SecretsName, msgspec.Meta(min_length=1)]
    values: Annotated[
        dict[str, Annotated[str, msgspec.Meta(max_length=4096)]], msgspec.Meta(max_length=256)
    ]


Command = (
    Hello
    | Submit
    | Query
    | ListOperations
    | Extend
    | Cancel
    | Force
    | Snapshot
    | Replay
    | ListCheckpoints
    | Upload
    | KeepSecrets
)


class Request(Struct, frozen=True, kw_only=True):
    """One frame towards the engine. `id` is the caller's and comes back in each response."""

    id: OperationId
    command: Command

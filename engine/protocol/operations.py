"""What an operation may be: one struct a kind, with the fields of its route.

A weight update is checked and staged on every rank while it serves, and swapped on all or none.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from engine.protocol.base import Struct
from engine.protocol.storage import (
    ConfigId,
    ConfigText,
    PrefetchPolicy,
    SecretsName,
    StorageBackend,
    WritePolicy,
)
from engine.protocol.types import OperationId, OperationKind
from engine.protocol.weights import MemoryTag, PauseMode

# No control character, and none that turns or hides the text around it.
WeightVersion = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=128,
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]+$(?!\n)",
    ),
]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
UploadId = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z_-]{1,64}$(?!\n)")]
FileName = Annotated[
    str, msgspec.Meta(pattern=r"^[0-9A-Za-z_][0-9A-Za-z_.-]{0,200}\.safetensors$(?!\n)")
]
Checksum = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}$(?!\n)")]
MAX_TENSORS = 100_000


class FlushCache(Struct, frozen=True, kw_only=True, tag="flush_cache"):
    """Drop L1 and L2 on every rank: tree, pools, counters. L3 stays."""

    empty_cache: bool = True  # also hand cached device memory back to the driver
    kind: ClassVar[OperationKind] = OperationKind.FLUSH_CACHE


class WeightUpdate(Struct, frozen=True, kw_only=True):
    """What every weight update may say."""

    weight_version: WeightVersion | None = None  # else the first 12 digits of the checksum
    flush_cache: bool = True
    torch_empty_cache: bool = False
    expected_checksum: Checksum | None = None  # of all tensors as served; another one is refused
    allow_nonfinite: bool = False  # take weights with NaN or infinity in them


class UpdateWeightsFromDisk(WeightUpdate, frozen=True, kw_only=True, tag="update_from_disk"):
    """From a folder of safetensors under an allowed root."""

    model_path: Annotated[str, msgspec.Meta(max_length=4096)]
    kind: ClassVar[OperationKind] = OperationKind.UPDATE_WEIGHTS_FROM_DISK


class UpdateWeightsFromTensor(WeightUpdate, frozen=True, kw_only=True, tag="update_from_tensor"):
    """From safetensors files that were uploaded under `upload_id`, all of them together."""

    upload_id: UploadId
    kind: ClassVar[OperationKind] = OperationKind.UPDATE_WEIGHTS_FROM_TENSOR


class TrainerGroup(Struct, frozen=True, kw_only=True):
    """A torch.distributed group: the trainer is rank 0, DP rank r joins as `rank_offset` + r."""

    master_address: Name
    master_port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    rank_offset: Annotated[int, msgspec.Meta(ge=0, le=100_000)]
    world_size: Annotated[int, msgspec.Meta(ge=2, le=100_000)]
    group_name: Name = "weight_update_group"
    backend: Literal["nccl", "gloo"] = "nccl"


class UpdateWeightsFromDistributed(
    WeightUpdate, frozen=True, kw_only=True, tag="update_from_distributed"
):
    """Broadcast by a trainer, in the order of `names`, after what `session` received before.

    With `group`, the ranks join it for this operation and leave it again.
    """

    names: Annotated[list[Name], msgspec.Meta(max_length=MAX_TENSORS)]
    dtypes: Annotated[list[Name], msgspec.Meta(max_length=MAX_TENSORS)]
    shapes: Annotated[list[list[int]], msgspec.Meta(max_length=MAX_TENSORS)]
    load_format: Literal["flattened_bucket"] | None = None
    group_name: Name = "weight_update_group"
    group: TrainerGroup | None = None
    session: OperationId = "none"
    receive_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 120.0
    kind: ClassVar[OperationKind] = OperationKind.UPDATE_WEIGHTS_FROM_DISTRIBUTED


class UpdateWeightVersion(Struct, frozen=True, kw_only=True, tag="update_weight_version"):
    """Name the weights that are served; touches no request, no tensor and no cache."""

    new_version: WeightVersion
    kind: ClassVar[OperationKind] = OperationKind.UPDATE_WEIGHT_VERSION


class PauseGeneration(Struct, frozen=True, kw_only=True, tag="pause_generation"):
    """Stop stepping until ContinueGeneration; new requests are held."""

    pause_mode: PauseMode = PauseMode.ABORT
    kind: ClassVar[OperationKind] = OperationKind.PAUSE_GENERATION


class ContinueGeneration(Struct, frozen=True, kw_only=True, tag="continue_generation"):
    """Step again."""

    torch_empty_cache: bool = True
    kind: ClassVar[OperationKind] = OperationKind.CONTINUE_GENERATION


class AbortRequests(Struct, frozen=True, kw_only=True, tag="abort_requests"):
    """End one request, or all. Not exclusive: it is carried out while others wait."""

    rid: Annotated[str, msgspec.Meta(max_length=256)] = ""
    abort_all: bool = False
    message: Annotated[str, msgspec.Meta(max_length=1024)] = "Aborted"
    kind: ClassVar[OperationKind] = OperationKind.ABORT_REQUESTS


class ReleaseMemory(Struct, frozen=True, kw_only=True, tag="release_memory"):
    """Give memory back to the machine; nothing is served until all of it is resumed."""

    tags: tuple[MemoryTag, ...] = (MemoryTag.KV_CACHE, MemoryTag.WEIGHTS)
    kind: ClassVar[OperationKind] = OperationKind.RELEASE_MEMORY


class ResumeMemory(Struct, frozen=True, kw_only=True, tag="resume_memory"):
    """Take memory again. Weights come back without contents: an update must follow."""

    tags: tuple[MemoryTag, ...] = (MemoryTag.KV_CACHE, MemoryTag.WEIGHTS)
    kind: ClassVar[OperationKind] = OperationKind.RESUME_MEMORY


class AttachStorage(Struct, frozen=True, kw_only=True, tag="attach_storage"):
    """Give every rank an L3. The same backend with the same settings is opened where a rank lacks
    it, and changes policies; another backend, or other settings, are refused unless `replace` is
    set."""

    backend: StorageBackend
    config: ConfigText = ""  # a JSON object; "" for none, or for what is attached now
    rank_configs: dict[str, ConfigText] = {}  # DP rank → JSON object laid over `config`
    config_id: ConfigId = ""  # settings that this engine knows already, instead of the two
    secrets: SecretsName = ""  # name of a KeepSecrets; "" for none
    prefetch_policy: PrefetchPolicy | None = None  # None: as it is
    write_policy: WritePolicy | None = None
    replace: bool = False  # detach what is attached, in the same operation
    kind: ClassVar[OperationKind] = OperationKind.ATTACH_STORAGE_BACKEND


class DetachStorage(Struct, frozen=True, kw_only=True, tag="detach_storage"):
    """Take the L3 away; what is in it stays. With nothing attached it succeeds, changing nothing.

    `force` does not wait for idle: transfers in flight are given up, requests go on without them.
    """

    force: bool = False
    kind: ClassVar[OperationKind] = OperationKind.DETACH_STORAGE_BACKEND


class ClearStorage(Struct, frozen=True, kw_only=True, tag="clear_storage"):
    """Delete what this engine's ranks keep in the attached backend. Not to be undone."""

    kind: ClassVar[OperationKind] = OperationKind.CLEAR_STORAGE_BACKEND


class SetCachePolicies(Struct, frozen=True, kw_only=True, tag="set_cache_policies"):
    """Change when pages are copied and how long requests wait for them, while serving."""

    prefetch_policy: PrefetchPolicy | None = None
    write_policy: WritePolicy | None = None
    kind: ClassVar[OperationKind] = OperationKind.SET_CACHE_POLICIES


class Repair(Struct, frozen=True, kw_only=True, tag="repair"):
    """Bring every living rank to the desired state; the only operation while one is fenced."""

    kind: ClassVar[OperationKind] = OperationKind.REPAIR


# These change something between two steps of a serving rank; they neither wait for idle nor park.
UNPARKED = frozenset(
    {
        OperationKind.UPDATE_WEIGHT_VERSION,
        OperationKind.PAUSE_GENERATION,
        OperationKind.CONTINUE_GENERATION,
        OperationKind.RESUME_MEMORY,
        OperationKind.SET_CACHE_POLICIES,
    }
)
WEIGHT_UPDATES = frozenset(
    {
        OperationKind.UPDATE_WEIGHTS_FROM_DISK,
        OperationKind.UPDATE_WEIGHTS_FROM_TENSOR,
        OperationKind.UPDATE_WEIGHTS_FROM_DISTRIBUTED,
    }
)

Operation = (
    FlushCache
    | UpdateWeightsFromDisk
    | UpdateWeightsFromTensor
    | UpdateWeightsFromDistributed
    | UpdateWeightVersion
    | PauseGeneration
    | ContinueGeneration
    | AbortRequests
    | ReleaseMemory
    | ResumeMemory
    | AttachStorage
    | DetachStorage
    | ClearStorage
    | SetCachePolicies
    | Repair
)


def parks(operation: Operation) -> bool:
    """It waits until every rank is idle, and they admit nothing while it commits."""
    if isinstance(operation, DetachStorage) and operation.force:
        return False
    return operation.kind not in UNPARKED

"""The state that an operation leads to, as far as it is known before ranks prepare. Pure.

What a rank alone can know, the checksum of weights, it fills in when it is prepared.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_never

import msgspec

from engine.config import EngineConfig
from engine.frontend.adoption import shown
from engine.frontend.storage_admin import tiers_changed
from engine.ipc.messages import ServingState
from engine.protocol import (
    AbortRequests,
    AttachStorage,
    ClearStorage,
    ContinueGeneration,
    DetachStorage,
    ErrorCode,
    FlushCache,
    MemoryTag,
    Operation,
    PauseGeneration,
    ProtocolError,
    ReleaseMemory,
    Repair,
    ResumeMemory,
    SetCachePolicies,
    UpdateWeightsFromDisk,
    UpdateWeightsFromDistributed,
    UpdateWeightsFromTensor,
    UpdateWeightVersion,
    WeightSource,
    WeightsView,
)
from engine.tensorfiles.errors import TensorFileError
from engine.tensorfiles.paths import resolve_beneath
from engine.tensorfiles.text import is_name, plain


def new_state(
    config: EngineConfig, operation: Operation, old: ServingState, op_id: str
) -> ServingState:
    """`old`, changed as `operation` asks. Raises ProtocolError for one that makes no sense now."""
    replace = msgspec.structs.replace
    match operation:
        case UpdateWeightsFromDisk():
            return replace(old, weights=_from_disk(config, operation))
        case UpdateWeightsFromTensor():
            folder = Path(config.weights_dir) / operation.upload_id
            return replace(old, weights=_from_upload(operation, folder))
        case UpdateWeightsFromDistributed():
            group = operation.group.group_name if operation.group else operation.group_name
            weights = WeightsView(
                version=operation.weight_version or "",
                source=WeightSource.DISTRIBUTED,
                path=str(Path(config.weights_dir) / f"trainer-{op_id}"),
                label=group,
            )
            return replace(old, weights=weights)
        case UpdateWeightVersion():
            return replace(old, weights=replace(old.weights, version=operation.new_version))
        case PauseGeneration():
            return replace(old, paused=operation.pause_mode)
        case ContinueGeneration():
            return replace(old, paused=None)
        case ReleaseMemory():
            return replace(old, released=_with(old.released, operation.tags))
        case ResumeMemory():
            left = tuple(tag for tag in old.released if tag not in operation.tags)
            needs = old.needs_weights or MemoryTag.WEIGHTS in operation.tags
            return replace(old, released=left, needs_weights=needs)
        case AttachStorage() | DetachStorage() | ClearStorage() | SetCachePolicies():
            return tiers_changed(config, operation, old)
        case FlushCache() | AbortRequests() | Repair():
            return old
        case _:
            assert_never(operation)


def _from_disk(config: EngineConfig, operation: UpdateWeightsFromDisk) -> WeightsView:
    roots = [Path(root) for root in config.weights_roots]
    try:
        root, folder = resolve_beneath(operation.model_path, roots)
    except TensorFileError as error:
        raise ProtocolError(ErrorCode.INVALID_ARGUMENT, plain(str(error))) from error
    if not all(map(is_name, folder.parts)):
        raise ProtocolError(
            ErrorCode.INVALID_ARGUMENT, f"{plain(str(folder))}: no name for a folder"
        )
    if not folder.is_dir():
        raise ProtocolError(ErrorCode.INVALID_ARGUMENT, f"{folder}: not a folder")
    return WeightsView(
        version=operation.weight_version or "",
        source=WeightSource.DISK,
        path=str(folder),
        label=shown(str(folder), [str(root)]),
    )


def _from_upload(operation: UpdateWeightsFromTensor, folder: Path) -> WeightsView:
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    if not files:
        raise ProtocolError(
            ErrorCode.INVALID_ARGUMENT, f"nothing was uploaded as {operation.upload_id!r}"
        )
    return WeightsView(
        version=operation.weight_version or "",
        source=WeightSource.TENSOR,
        path=str(folder),
        label=files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more",
    )


def _with(tags: tuple[MemoryTag, ...], more: tuple[MemoryTag, ...]) -> tuple[MemoryTag, ...]:
    return tuple(tag for tag in MemoryTag if tag in (*tags, *more))

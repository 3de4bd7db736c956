"""Routes that stop and start generation, and that give memory up and take it again."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.frontend.http_errors import HTTPError
from engine.frontend.http_json import read_json
from engine.frontend.http_operation import Options, answered
from engine.protocol import (
    ContinueGeneration,
    MemoryTag,
    OperationResult,
    PauseGeneration,
    PauseMode,
    ReleaseMemory,
    ResumeMemory,
)
from engine.protocol.types import OperationId

# SGLang's third tag: this engine keeps no CUDA graphs that could be released.
_CUDA_GRAPH = "cuda_graph"


class _Pause(msgspec.Struct, forbid_unknown_fields=True):
    mode: PauseMode = PauseMode.ABORT
    op_id: OperationId | None = None


class _Continue(msgspec.Struct, forbid_unknown_fields=True):
    torch_empty_cache: bool = True
    op_id: OperationId | None = None


class _Memory(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tags: list[str] | None = None


def _status(result: OperationResult) -> str:
    return "ok" if result.outcome == "succeeded" else "error"


async def pause_generation(request: Request) -> Response:
    """POST /pause_generation {"mode": abort | retract | in_place}: answered after its effect."""
    body = await read_json(request, _Pause)
    return await answered(
        request,
        PauseGeneration(pause_mode=body.mode),
        Options(op_id=body.op_id),
        "Generation paused successfully.",
        status=_status,
        pause_mode=body.mode,
    )


async def continue_generation(request: Request) -> Response:
    """POST /continue_generation {"torch_empty_cache": true}"""
    body = await read_json(request, _Continue)
    return await answered(
        request,
        ContinueGeneration(torch_empty_cache=body.torch_empty_cache),
        Options(op_id=body.op_id),
        "Generation continued successfully.",
        status=_status,
    )


async def release_memory(request: Request) -> Response:
    """POST /release_memory_occupation {"tags": null | [kv_cache, weights], timeout, mode}"""
    body = await read_json(request, _Memory)
    return await answered(request, ReleaseMemory(tags=_tags(body)), body, "Memory released.")


async def resume_memory(request: Request) -> Response:
    """POST /resume_memory_occupation {"tags": null | [kv_cache, weights]}"""
    body = await read_json(request, _Memory)
    return await answered(request, ResumeMemory(tags=_tags(body)), body, "Memory resumed.")


def _tags(body: _Memory) -> tuple[MemoryTag, ...]:
    """All, or those named, once each. Raises HTTPError for a word that is none."""
    if body.tags is None:
        return tuple(MemoryTag)
    words: list[Any] = [tag for tag in body.tags if tag != _CUDA_GRAPH]
    for word in words:
        if word not in list(MemoryTag):
            known = [*MemoryTag, _CUDA_GRAPH]
            raise HTTPError(
                400, f"tags: {word!r} is not one of {list(map(str, known))}", param="tags"
            )
    return tuple(tag for tag in MemoryTag if tag in words)

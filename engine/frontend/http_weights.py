"""Routes that replace weights from disk, name them, and read them back.

SGLang's fields and messages; what it reports of the first rank only is reported of every rank.
"""

from __future__ import annotations

import hashlib
import math
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.frontend import unimplemented
from engine.frontend.core import Frontend
from engine.frontend.http_errors import HTTPError, json_response
from engine.frontend.http_json import convert, parse, read_body, read_json
from engine.frontend.http_operation import Options, answered
from engine.frontend.weight_sessions import told
from engine.ipc.messages import Answered, ReadChecksums, ReadTensor
from engine.protocol import Mode, OperationResult, UpdateWeightsFromDisk, UpdateWeightVersion
from engine.protocol.operations import Checksum, Name, WeightVersion
from engine.protocol.types import OperationId

_READ_S = 60.0
_CHECK_S = 600.0
_MAX_NUMBERS = 4 << 20  # of one rank, in one answer


class UpdateOptions(Options, frozen=True, kw_only=True):
    """Fields that every weight update takes."""

    weight_version: WeightVersion | None = None
    flush_cache: bool = True
    torch_empty_cache: bool = False
    abort_all_requests: bool = False  # SGLang's name for mode abort
    expected_checksum: Checksum | None = None
    allow_nonfinite: bool = False

    def for_operation(self) -> Options:
        """How the operation runs."""
        mode = Mode.ABORT if self.abort_all_requests else self.mode
        return Options(timeout=self.timeout, mode=mode, op_id=self.op_id)

    def for_update(self) -> dict[str, Any]:
        """What the update's own struct takes."""
        return {
            "weight_version": self.weight_version,
            "flush_cache": self.flush_cache,
            "torch_empty_cache": self.torch_empty_cache,
            "expected_checksum": self.expected_checksum,
            "allow_nonfinite": self.allow_nonfinite,
        }

    def done(self, message: str) -> str:
        """SGLang's sentence of a success."""
        if self.weight_version is None:
            return message
        return f"{message} Weight version updated to {self.weight_version}."


class _FromDisk(UpdateOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model_path: Annotated[str, msgspec.Meta(max_length=4096)]
    load_format: Literal["auto", "safetensors"] | None = None


def num_paused(result: OperationResult) -> int:
    """SGLang's name for the requests that an update put back or ended."""
    return result.interrupted


async def update_from_disk(request: Request) -> Response:
    """POST /update_weights_from_disk"""
    body = await read_json(request, _FromDisk, unimplemented.UPDATE_FROM_DISK)
    return await answered(
        request,
        UpdateWeightsFromDisk(model_path=body.model_path, **body.for_update()),
        body.for_operation(),
        body.done("Succeeded to update model weights."),
        num_paused_requests=num_paused,
    )


class _Version(msgspec.Struct, forbid_unknown_fields=True):
    new_version: WeightVersion
    abort_all_requests: bool = False  # SGLang's default ends every request for a new name
    op_id: OperationId | None = None


async def update_version(request: Request) -> Response:
    """POST /update_weight_version {"new_version": name}"""
    body = await read_json(request, _Version)
    if body.abort_all_requests:
        request.app.state.frontend.requests.abort_all("Aborted")
    return await answered(
        request,
        UpdateWeightVersion(new_version=body.new_version),
        Options(op_id=body.op_id),
        f"Weight version updated to {body.new_version}",
        new_version=body.new_version,
    )


# ---- reading them back -----------------------------------------------------------------------


class _ByName(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    truncate_size: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 100


async def get_by_name(request: Request) -> Response:
    """GET or POST /get_weights_by_name: the first rows of a tensor, a list a DP rank."""
    body = await read_json(request, _ByName)
    frontend: Frontend = request.app.state.frontend
    facts = frontend.facts()
    shape = dict(facts.tensors).get(body.name) if facts is not None else []
    if shape is None:
        raise HTTPError(400, "Get parameter by name failed", param="name")
    if shape and min(shape[0], body.truncate_size) * math.prod(shape[1:]) > _MAX_NUMBERS:
        raise HTTPError(
            400,
            f"these rows of {shape} hold more than {_MAX_NUMBERS} numbers: ask for fewer",
            param="truncate_size",
        )
    question = ReadTensor(name=body.name, truncate_size=body.truncate_size)
    answers = await frontend.calls.ask(question, timeout_s=_READ_S)
    why = told(answers, frontend.config.dp_size)
    if why:
        raise HTTPError(503, why)
    lists = [_nested(answers[rank].numbers, answers[rank].shape) for rank in sorted(answers)]
    return json_response(lists[0] if len(lists) == 1 else lists)


def _nested(numbers: list[float], shape: list[int]) -> list[Any]:
    """One list of numbers as rows; Any: as deep as the shape."""
    if len(shape) < 2:
        return numbers
    size = math.prod(shape[1:])
    return [_nested(numbers[i : i + size], shape[1:]) for i in range(0, len(numbers), size)]


class _Check(msgspec.Struct, forbid_unknown_fields=True):
    action: Literal["checksum"] = "checksum"
    recompute: bool = True


async def check(request: Request) -> Response:
    """GET or POST /weights_checker: every rank's checksums, computed from what it computes with.

    200 where all ranks hold the same weights, and those that are desired; 400 names the others.
    """
    data = await read_body(request)
    document = parse(data) if data else {}
    if not isinstance(document, dict):
        raise HTTPError(400, "the body must be a JSON object")
    body = convert(document, _Check, unimplemented.WEIGHTS_CHECKER)
    frontend: Frontend = request.app.state.frontend
    question = ReadChecksums(recompute=body.recompute)
    answers = await frontend.calls.ask(question, timeout_s=_CHECK_S)
    why = told(answers, frontend.config.dp_size)
    desired = frontend.journal.index.desired.weights
    odd = [rank for rank in sorted(answers) if answers[rank].checksum != desired.checksum]
    if not why and odd:
        named = ", ".join(f"rank {rank} holds {answers[rank].checksum}" for rank in odd)
        why = f"{desired.checksum} is to be served; {named}"
    dp_size = frontend.config.dp_size
    ranks = [_rank_checksums(answers[rank], dp_size) for rank in sorted(answers)]
    whole = hashlib.sha256("".join(r["per_gpu_checksum"] for r in ranks).encode()).hexdigest()
    return json_response(
        {
            "success": not why,
            "message": why or "all ranks hold the same weights",
            "weight_version": desired.version,
            "desired_checksum": desired.checksum,
            "ranks": ranks,
            "per_engine_checksum": whole,
        },
        400 if why else 200,
    )


def _rank_checksums(answer: Answered, dp_size: int) -> dict[str, Any]:
    """SGLang's shape; a DP rank is one process, so its tensor and pipeline groups have one rank."""
    single = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "rank": 0, "size": 1}
    place = {"role": "target", "dp_rank": answer.rank, "dp_size": dp_size, **single}
    return {
        "dp_rank": answer.rank,
        "checksums": answer.checksums,
        "per_gpu_checksum": answer.checksum,
        "parallelism_info": [place],
    }

"""What a trainer is going to send, checked against the model before anything is waited for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from engine.models.config import ModelConfig
from engine.models.errors import TensorShapeError, UnexpectedTensorError
from engine.models.llama import expected_shapes
from engine.protocol import UpdateWeightsFromDistributed
from engine.weights.errors import WeightsError

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class Expected:
    """What a trainer is going to send, in its order."""

    names: list[str]
    dtypes: list[torch.dtype]
    shapes: list[tuple[int, ...]]
    is_flat: bool  # all in one run of bytes

    def sizes_bytes(self) -> list[int]:
        """Bytes of each tensor as it is sent."""
        pairs = zip(self.dtypes, self.shapes, strict=True)
        return [math.prod(shape) * int(dtype.itemsize) for dtype, shape in pairs]


def expected_of(
    operation: UpdateWeightsFromDistributed,
    config: ModelConfig,
    dtype: torch.dtype,
    has_parts: bool,
) -> Expected:
    """What the operation says will come: without names, and nothing before it, all tensors in the
    sorted order of their names, in the engine's dtype. Raises WeightsError, TensorError."""
    if operation.names or has_parts:
        return checked(
            operation.names, operation.dtypes, operation.shapes, operation.load_format, config
        )
    shapes = expected_shapes(config)
    names = sorted(shapes)
    is_flat = operation.load_format == "flattened_bucket"
    return Expected(names, [dtype] * len(names), [shapes[name] for name in names], is_flat)


def checked(
    names: list[str],
    dtypes: list[str],
    shapes: list[list[int]],
    load_format: str | None,
    config: ModelConfig,
) -> Expected:
    """The same lists, checked against the model before anything is waited for.

    Raises WeightsError, UnexpectedTensorError, TensorShapeError.
    """
    if not len(names) == len(dtypes) == len(shapes):
        raise WeightsError(
            f"{len(names)} names, {len(dtypes)} dtypes and {len(shapes)} shapes do not belong "
            "together"
        )
    known = expected_shapes(config)
    for name, shape in zip(names, shapes, strict=True):
        if name not in known:
            raise UnexpectedTensorError(name)
        if tuple(shape) != known[name]:
            raise TensorShapeError(name, tuple(shape), known[name])
    found = []
    for name, text in zip(names, dtypes, strict=True):
        short = text.removeprefix("torch.")
        if short not in DTYPES:
            raise WeightsError(f"tensor {name}: dtype {text!r} is not one of {sorted(DTYPES)}")
        found.append(DTYPES[short])
    return Expected(names, found, [tuple(s) for s in shapes], load_format == "flattened_bucket")

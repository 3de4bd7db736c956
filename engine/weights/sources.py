"""Where new weights come from: a folder under an allowed root, uploaded files, received tensors.

Opens and checks; what passes every check is handed on, and nothing is read before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from engine.models.base import TensorSource
from engine.models.checkpoint import DTYPES, open_checkpoint, open_uploaded
from engine.models.config import ModelConfig, read_config
from engine.models.digest import TensorMap
from engine.models.errors import (
    MissingTensorError,
    TensorDtypeError,
    TensorShapeError,
    UnexpectedTensorError,
)
from engine.models.llama import check_checkpoint, expected_shapes
from engine.tensorfiles.paths import Roots, resolve_beneath
from engine.weights.errors import WeightsError

# Settings of config.json that do not change what is computed.
_MAY_DIFFER = frozenset({"eos_ids", "context_len"})
Received = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Opened:
    """Checked tensors, and their size as stored."""

    source: TensorSource
    size_bytes: int


@contextmanager
def from_disk(path: str, running: ModelConfig, roots: Roots) -> Iterator[Opened]:
    """A folder under a root, of the running model's architecture. Raises ModelError, WeightsError.

    Links are followed as far as they stay under the roots.
    """
    _, folder = resolve_beneath(path, roots)
    check_config(read_config(folder, roots), running)
    with open_checkpoint(folder, roots) as checkpoint:
        check_checkpoint(checkpoint, running)
        yield Opened(checkpoint, checkpoint.size_bytes)


@contextmanager
def from_start(folder: Path, running: ModelConfig) -> Iterator[Opened]:
    """The folder that the engine was started with. Raises ModelError."""
    with open_checkpoint(folder) as checkpoint:
        check_checkpoint(checkpoint, running)
        yield Opened(checkpoint, checkpoint.size_bytes)


@contextmanager
def from_upload(folder: Path, running: ModelConfig) -> Iterator[Opened]:
    """All safetensors files of a folder of ours. Raises ModelError."""
    with open_uploaded(folder) as checkpoint:
        check_checkpoint(checkpoint, running)
        yield Opened(checkpoint, checkpoint.size_bytes)


@contextmanager
def from_memory(tensors: Received, running: ModelConfig) -> Iterator[Opened]:
    """Tensors that were received. Raises a TensorError."""
    expected = expected_shapes(running)
    for name, shape in expected.items():
        if name not in tensors:
            raise MissingTensorError(name)
        check_tensor(name, tensors[name], shape)
    for name in sorted(tensors.keys() - expected.keys()):
        raise UnexpectedTensorError(name)
    yield Opened(TensorMap(tensors), sum(t.numel() * t.element_size() for t in tensors.values()))


def check_tensor(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raise a TensorError unless it has this shape and a format that is read."""
    if tuple(tensor.shape) != shape:
        raise TensorShapeError(name, tuple(tensor.shape), shape)
    if tensor.dtype not in DTYPES.values():
        raise TensorDtypeError(name, str(tensor.dtype))


def check_config(found: ModelConfig, running: ModelConfig) -> None:
    """Raise WeightsError, naming the setting, unless both describe the same computation."""
    for field in fields(ModelConfig):
        new, old = getattr(found, field.name), getattr(running, field.name)
        if new != old and field.name not in _MAY_DIFFER:
            raise WeightsError(
                f"the checkpoint's {field.name} is {new!r}, the running model's is {old!r}"
            )

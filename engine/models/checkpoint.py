"""Reads the tensors of a Hugging Face folder, in one safetensors file or several shards.

Files are mapped, not copied, and nothing is ever unpickled. Knows names, shapes and files; what the
tensors are for is the model's business.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.models.errors import (
    MissingTensorError,
    ModelFileError,
    TensorDtypeError,
    TensorShapeError,
    UnexpectedTensorError,
)

Shapes = Mapping[str, tuple[int, ...]]

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
DTYPES = {"BF16", "F16", "F32"}


class Checkpoint:
    """The tensors of a folder by name, read from disk when asked for."""

    def __init__(self, files: Mapping[str, safe_open]) -> None:
        """Take the open file of each tensor name."""
        self._files = files

    def names(self) -> set[str]:
        """Return the names of all tensors."""
        return set(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the stored shape; reads no data. Raises MissingTensorError."""
        return tuple(self._slice(name).get_shape())

    def check(self, expected: Shapes, ignored: frozenset[str] = frozenset()) -> None:
        """Raise a TensorError unless names, shapes and formats are just those `expected`."""
        for name, shape in expected.items():
            if self.shape(name) != shape:
                raise TensorShapeError(name, self.shape(name), shape)
            dtype = self._slice(name).get_dtype()
            if dtype not in DTYPES:
                raise TensorDtypeError(name, dtype)
        for name in sorted(self.names() - set(expected) - ignored):
            raise UnexpectedTensorError(name)

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor in `dtype`, on the CPU. Raises MissingTensorError."""
        if name not in self._files:
            raise MissingTensorError(name)
        tensor: torch.Tensor = self._files[name].get_tensor(name)  # type: ignore[no-untyped-call]  # Rust
        return tensor.to(dtype)

    def _slice(self, name: str) -> Any:  # safetensors gives its slices no public type
        if name not in self._files:
            raise MissingTensorError(name)
        return self._files[name].get_slice(name)  # type: ignore[no-untyped-call]  # Rust


@contextmanager
def open_checkpoint(folder: Path) -> Iterator[Checkpoint]:
    """Open all shards of `folder` for the time of the block. Raises ModelFileError, TensorError."""
    with ExitStack() as stack:
        files: dict[str, safe_open] = {}
        for path, names in _shards(folder).items():
            shard = stack.enter_context(_open(path))
            held = set(shard.keys())
            for name in sorted((names or held) - held):
                raise MissingTensorError(name)
            for name in sorted(held - (names or held)):
                raise UnexpectedTensorError(name, f"{path.name} has it, the index does not")
            files |= dict.fromkeys(held, shard)
        yield Checkpoint(files)


def _shards(folder: Path) -> dict[Path, set[str] | None]:
    """Return each file with the names that the index puts there; None where there is no index."""
    index = folder / INDEX_FILE
    if not index.exists():
        return {folder / SINGLE_FILE: None}
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        pairs = [(str(name), str(file)) for name, file in weight_map.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(index, f"not a readable index: {error!r}") from error
    shards: dict[Path, set[str] | None] = {}
    for name, file in pairs:
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise ModelFileError(index, f"names no safetensors file of the folder: {file!r}")
        names = shards.setdefault(folder / file, set())
        assert names is not None
        names.add(name)
    return shards


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except OSError as error:
        raise ModelFileError(path, error.strerror or str(error)) from error
    except SafetensorError as error:
        raise ModelFileError(path, f"not a readable safetensors file: {error}") from error

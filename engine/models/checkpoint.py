"""Reads the tensors of a Hugging Face folder, in one safetensors file or several shards.

Nothing is ever unpickled, and nothing mapped: a file that changes while it is read is an error.
Knows names, shapes and files; what the tensors are for is the model's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from engine.models.errors import (
    MissingTensorError,
    ModelFileError,
    TensorDtypeError,
    TensorShapeError,
    UnexpectedTensorError,
)
from engine.tensorfiles.errors import TensorFileError
from engine.tensorfiles.folder import TensorFolder, TensorNameError, open_folder, open_parts
from engine.tensorfiles.header import read_into
from engine.tensorfiles.paths import Roots

Shapes = Mapping[str, tuple[int, ...]]

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


class Checkpoint:
    """The tensors of a folder by name, read from disk when asked for."""

    def __init__(self, folder: TensorFolder) -> None:
        """Take an open folder; whoever opened it closes it."""
        self._places = folder.places
        self.size_bytes = folder.size_bytes

    def names(self) -> set[str]:
        """Return the names of all tensors."""
        return set(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the stored shape; reads no data. Raises MissingTensorError."""
        if name not in self._places:
            raise MissingTensorError(name)
        return self._places[name].entry.shape

    def check(self, expected: Shapes, ignored: frozenset[str] = frozenset()) -> None:
        """Raise a TensorError unless names, shapes and formats are just those `expected`."""
        for name, shape in expected.items():
            if self.shape(name) != shape:
                raise TensorShapeError(name, self.shape(name), shape)
            dtype = self._places[name].entry.dtype
            if dtype not in DTYPES:
                raise TensorDtypeError(name, dtype)
        for name in sorted(self.names() - set(expected) - ignored):
            raise UnexpectedTensorError(name)

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor in `dtype`, on the CPU. Raises MissingTensorError, ModelFileError."""
        if name not in self._places:
            raise MissingTensorError(name)
        place = self._places[name]
        if place.entry.dtype not in DTYPES:
            raise TensorDtypeError(name, place.entry.dtype)
        data = torch.empty(place.entry.size_bytes, dtype=torch.uint8)
        try:
            read_into(place.fd, memoryview(data.numpy()), place.entry.offset)
        except (OSError, ValueError) as error:
            raise ModelFileError(place.path, f"tensor {name}: {error}") from error
        return data.view(DTYPES[place.entry.dtype]).view(place.entry.shape).to(dtype)


@contextmanager
def open_checkpoint(folder: Path, roots: Roots | None = None) -> Iterator[Checkpoint]:
    """Open all shards of `folder` for the time of the block. Raises ModelFileError, TensorError.

    With `roots`, every file must lie under one of them, links included.
    """
    with _told(lambda: open_folder(folder, roots)) as opened:
        yield Checkpoint(opened)


@contextmanager
def open_uploaded(folder: Path) -> Iterator[Checkpoint]:
    """Open every safetensors file of a folder of ours. Raises ModelFileError, TensorError."""
    with _told(lambda: open_parts(folder)) as opened:
        yield Checkpoint(opened)


@contextmanager
def _told(opening: Callable[[], TensorFolder]) -> Iterator[TensorFolder]:
    try:
        opened = opening()
    except TensorNameError as error:
        if error.is_missing:
            raise MissingTensorError(error.name) from error
        raise UnexpectedTensorError(error.name, error.detail) from error
    except TensorFileError as error:
        raise ModelFileError(error.path, error.reason) from error
    with opened:
        yield opened

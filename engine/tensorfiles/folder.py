"""The tensors of a Hugging Face folder: one safetensors file, or shards that an index names.

Opens the files and reads their headers; the tensors themselves are read by whoever asks.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engine.tensorfiles.errors import TensorFileError
from engine.tensorfiles.header import Entry, read_header
from engine.tensorfiles.paths import Roots, open_file
from engine.tensorfiles.text import is_name, plain

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_INDEX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies: an open file, its path for people, and the entry of its header."""

    fd: int
    path: Path
    entry: Entry


class TensorNameError(TensorFileError):
    """Index and files, or two files, do not agree about a tensor. `is_missing`, or too many."""

    def __init__(self, path: object, name: str, reason: str, *, is_missing: bool) -> None:
        super().__init__(path, f"tensor {name}: {reason}")
        self.name, self.is_missing, self.detail = name, is_missing, reason


class TensorFolder:
    """Open files of a folder. Close it, or use it as a context."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self.size_bytes = 0
        self._fds: list[int] = []

    def add(self, path: Path, roots: Roots | None, names: set[str] | None) -> None:
        """Open one more file, which holds just `names` where an index says so."""
        fd = open_file(path, roots)
        self._fds.append(fd)
        held = read_header(fd, path)
        for name in sorted((names or set(held)) - set(held)):
            raise TensorNameError(path, name, "missing from the checkpoint", is_missing=True)
        for name in sorted(set(held) - (names or set(held))):
            reason = f"{path.name} has it, the index does not"
            raise TensorNameError(path, name, reason, is_missing=False)
        for name in sorted(held.keys() & self.places.keys()):
            reason = f"{path.name} has it, and so has {self.places[name].path.name}"
            raise TensorNameError(path, name, reason, is_missing=False)
        self.size_bytes += os.fstat(fd).st_size
        self.places |= {name: Place(fd, path, entry) for name, entry in held.items()}

    @property
    def num_files(self) -> int:
        """Files that were opened."""
        return len(self._fds)

    def close(self) -> None:
        """Give the files up. Harmless when done before."""
        while self._fds:
            with suppress(OSError):
                os.close(self._fds.pop())

    def __enter__(self) -> TensorFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_folder(folder: Path, roots: Roots | None = None) -> TensorFolder:
    """Open a checkpoint's file or shards. Raises TensorFileError; then nothing stays open."""
    return _open(shards(folder, roots), roots)


def open_parts(folder: Path) -> TensorFolder:
    """Open every safetensors file of a folder of ours; no index ties them together."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise TensorFileError(folder, "holds no safetensors file")
    return _open(dict.fromkeys(files), [folder])


def _open(files: dict[Path, set[str] | None], roots: Roots | None) -> TensorFolder:
    opened = TensorFolder()
    try:
        for path, names in files.items():
            opened.add(path, roots, names)
    except BaseException:
        opened.close()
        raise
    return opened


def shards(folder: Path, roots: Roots | None) -> dict[Path, set[str] | None]:
    """Return each file with the names that the index puts there; None where there is no index."""
    index = folder / INDEX_FILE
    if not os.path.lexists(index):
        return {folder / SINGLE_FILE: None}
    try:
        weight_map = json.loads(read_text(index, roots))["weight_map"]
        pairs = [(str(name), str(file)) for name, file in weight_map.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, TensorFileError):
            raise
        raise TensorFileError(index, f"not a readable index: {plain(repr(error), 200)}") from error
    files: dict[Path, set[str] | None] = {}
    for name, file in pairs:
        if not is_name(name) or not is_name(file):
            raise TensorFileError(index, "holds what is no name of a tensor or a file")
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise TensorFileError(index, f"names no safetensors file of the folder: {file!r}")
        names = files.setdefault(folder / file, set())
        assert names is not None
        names.add(name)
    return files


def read_text(path: Path, roots: Roots | None) -> str:
    """A small text file, opened like any other. Raises TensorFileError."""
    fd = open_file(path, roots)
    with os.fdopen(fd, "rb") as file:
        try:
            data = file.read(MAX_INDEX_BYTES + 1)
            if len(data) > MAX_INDEX_BYTES:
                raise TensorFileError(path, f"larger than {MAX_INDEX_BYTES} bytes")
            return data.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise TensorFileError(path, str(error)) from error

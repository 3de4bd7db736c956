"""The header of a safetensors file: which tensor lies where. Reads no tensor, trusts no number.

Format: 8 bytes of length (little-endian), that much JSON {name: {dtype, shape, data_offsets}},
then the data without a gap. https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import dataclass
from typing import TypeGuard

from engine.tensorfiles.errors import TensorFileError
from engine.tensorfiles.text import is_name, plain

MAX_HEADER_BYTES = 16 << 20  # 100,000 tensors take about 12 MB
_LENGTH = struct.Struct("<Q")
ITEM_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2,
    "U16": 2, "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: its format, its shape, and its bytes from `offset` of the file on."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


def read_header(fd: int, shown: object) -> dict[str, Entry]:
    """Read and check the header of an open file; `shown` names it in errors.

    Raises TensorFileError: not safetensors, torn, or with tensors that overlap or leave the file.
    """
    try:
        size = os.fstat(fd).st_size
        (length,) = _LENGTH.unpack(_read(fd, _LENGTH.size, 0))
        if length > min(MAX_HEADER_BYTES, size - _LENGTH.size):
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        document = json.loads(_read(fd, length, _LENGTH.size), object_pairs_hook=_unique)
        if not isinstance(document, dict):
            raise ValueError("its header is no JSON object")
        entries = _entries(document, _LENGTH.size + length, size)
    except OSError as error:
        raise TensorFileError(shown, error.strerror or str(error)) from error
    except (ValueError, struct.error, RecursionError) as error:
        raise TensorFileError(shown, f"not a readable safetensors file: {error}") from error
    return entries


def _entries(document: dict[str, object], first: int, size: int) -> dict[str, Entry]:
    entries = {
        name: _entry(name, given, first)
        for name, given in document.items()
        if name != "__metadata__"
    }
    end = first
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset, item[0])):
        if entry.offset != end:
            raise ValueError(f"tensor {name} does not begin where the one before it ends")
        end += entry.size_bytes
    if end != size:
        raise ValueError(f"its tensors end at byte {end}, the file at {size}")
    return entries


def _entry(name: str, given: object, first: int) -> Entry:
    if not is_name(name):
        raise ValueError(f"{plain(name, 80)!r} is no name of a tensor")
    if not isinstance(given, dict):
        raise ValueError(f"tensor {name} is not described")
    dtype, shape, offsets = (given.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise ValueError(f"tensor {name} has the unknown format {dtype!r}")
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise ValueError(f"tensor {name} has no shape or no place")
    size_bytes = math.prod(shape) * ITEM_BYTES[dtype]
    if offsets[1] - offsets[0] != size_bytes:
        raise ValueError(f"tensor {name} has {offsets[1] - offsets[0]} bytes for {size_bytes}")
    return Entry(dtype, tuple(shape), first + offsets[0], size_bytes)


def _are_counts(found: object) -> TypeGuard[list[int]]:
    return isinstance(found, list) and all(type(n) is int and 0 <= n < 1 << 62 for n in found)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is given twice")
    return found


def _read(fd: int, count: int, offset: int) -> bytes:
    data = bytearray(count)
    read_into(fd, memoryview(data), offset)
    return bytes(data)


def read_into(fd: int, target: memoryview, offset: int) -> None:
    """Fill `target` from `offset` on. Raises OSError, and ValueError where the file ends first.

    Not mapped: a file that is cut while it is read gives an error here and no SIGBUS.
    """
    done = 0
    while done < len(target):
        count = os.preadv(fd, [target[done:]], offset + done)
        if count == 0:
            raise ValueError(f"it ends at byte {offset + done}")
        done += count

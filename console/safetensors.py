"""Whether a file is safetensors, told by its header alone: no tensor is loaded.

The format: 8 bytes of header length, the header as JSON, then every tensor's bytes without gaps
(https://github.com/huggingface/safetensors, "Format"). Knows no engine and no model.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from typing import Any, BinaryIO  # a header is any JSON object until it is checked

MAX_HEADER_BYTES = 100_000_000
DTYPE_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}


class BadSafetensors(Exception):
    """The file is not what its name says; the message is the reason, for people."""


@dataclass(frozen=True)
class Header:
    """What a whole file holds."""

    num_tensors: int
    size_bytes: int  # of the file


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadSafetensors("its header names a tensor twice")
    return found


def _read(file: BinaryIO, size_bytes: int) -> tuple[dict[str, Any], int]:
    """(header, bytes of all tensors)."""
    if size_bytes < 8:
        raise BadSafetensors(f"it has {size_bytes} bytes, too few for a header")
    header_bytes = int.from_bytes(file.read(8), "little")
    if header_bytes > min(MAX_HEADER_BYTES, size_bytes - 8):
        raise BadSafetensors(
            f"its header claims {header_bytes} bytes; the file has {size_bytes - 8} after that"
        )
    try:
        header = json.loads(file.read(header_bytes).decode("utf-8"), object_pairs_hook=_pairs)
    except (ValueError, RecursionError) as error:
        raise BadSafetensors("its header is not JSON") from error
    if not isinstance(header, dict):
        raise BadSafetensors("its header is not an object")
    return header, size_bytes - 8 - header_bytes


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _span(name: str, entry: object) -> tuple[int, int]:
    """Where a tensor's bytes are; checked against its dtype and shape."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise BadSafetensors(f"tensor {name[:100]!r} must say dtype, shape and data_offsets")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or not all(_is_count(side) for side in shape):
        raise BadSafetensors(f"tensor {name[:100]!r} has no valid shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise BadSafetensors(f"tensor {name[:100]!r} has no valid data_offsets")
    bits = DTYPE_BITS.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if bits is None:
        raise BadSafetensors(f"tensor {name[:100]!r} has an unknown dtype")
    begin, end = offsets
    if (end - begin) * 8 != math.prod(shape) * bits:
        raise BadSafetensors(f"tensor {name[:100]!r} has {end - begin} bytes, not as its shape")
    return begin, end


def header_check(file: BinaryIO) -> Header:
    """Check the header of `file`, which is read from its start. Raises BadSafetensors, OSError."""
    size_bytes = os.fstat(file.fileno()).st_size
    file.seek(0)
    header, data_bytes = _read(file, size_bytes)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise BadSafetensors("its __metadata__ is not an object")
    if not header:
        raise BadSafetensors("it holds no tensor")
    at = 0
    for begin, end in sorted(_span(name, entry) for name, entry in header.items()):
        if begin != at:
            raise BadSafetensors(f"its tensors overlap or leave a gap at byte {min(begin, at)}")
        at = end
    if at != data_bytes:
        raise BadSafetensors(
            f"its tensors need {at} bytes and it has {data_bytes}: truncated, or with a tail"
        )
    return Header(num_tensors=len(header), size_bytes=size_bytes)

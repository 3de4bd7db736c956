"""A record: one host page as it is kept outside, a header of 128 bytes before its payload.

    magic 4 · version 2 · reserved 2 · payload length 8 · key 48 · xxh3-64 of the payload 8
    · xxh3-64 of the header up to here 8 · zeros

All numbers are little-endian. A page is written and read with its header in place, so a record is
one run of bytes, padded to the alignment of direct I/O.
"""

from __future__ import annotations

import struct
from enum import StrEnum

import xxhash

from engine.cache.storage.base import ALIGNMENT_BYTES, KEY_BYTES

HEADER_BYTES = 128
_MAGIC = b"QKV1"
_VERSION = 1
_HEAD = struct.Struct("<4sHHQ48sQ")
_CHECK = struct.Struct("<Q")


class Fault(StrEnum):
    """Why a record is not the page that was asked for."""

    FOREIGN = "foreign"  # no record of ours, or of another version
    OTHER_KEY = "other_key"
    TRUNCATED = "truncated"
    CORRUPT = "corrupt"


def record_bytes(payload_bytes: int) -> int:
    """Length of a record, padding included."""
    return -(-(HEADER_BYTES + payload_bytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def seal(record: memoryview, key: bytes, payload_bytes: int) -> None:
    """Write the header over a payload that is in place."""
    assert len(key) == KEY_BYTES, f"a key of {len(key)} bytes"
    payload = record[HEADER_BYTES : HEADER_BYTES + payload_bytes]
    digest = xxhash.xxh3_64_intdigest(payload)
    head = _HEAD.pack(_MAGIC, _VERSION, 0, payload_bytes, key, digest)
    record[: _HEAD.size] = head
    record[_HEAD.size : _HEAD.size + _CHECK.size] = _CHECK.pack(xxhash.xxh3_64_intdigest(head))


def header_key(header: bytes | memoryview) -> tuple[bytes, int] | None:
    """The key and the payload's length of a header that is whole; None for anything else."""
    head = bytes(header[: _HEAD.size])
    if len(header) < _HEAD.size + _CHECK.size:
        return None
    magic, version, _, payload_bytes, key, _ = _HEAD.unpack(head)
    (check,) = _CHECK.unpack_from(header, _HEAD.size)
    if magic != _MAGIC or version != _VERSION or check != xxhash.xxh3_64_intdigest(head):
        return None
    return key, payload_bytes


def fault_of(record: memoryview, key: bytes, payload_bytes: int) -> Fault | None:
    """Why this is not that page, or None for one that is whole."""
    found = header_key(record[:HEADER_BYTES])
    if found is None:
        return Fault.FOREIGN
    if found[0] != key:
        return Fault.OTHER_KEY
    if found[1] != payload_bytes:
        return Fault.TRUNCATED
    *_, digest = _HEAD.unpack(record[: _HEAD.size])
    payload = record[HEADER_BYTES : HEADER_BYTES + payload_bytes]
    return None if xxhash.xxh3_64_intdigest(payload) == digest else Fault.CORRUPT

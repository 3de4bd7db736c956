"""Keys of pages: a chained hash of their tokens, behind a fingerprint of what computed them.

The chain is SGLang's: sha256 over the digest of the page before and this page's tokens as
little-endian uint32. A tenant's `extra_key` is its seed, so no tenant finds another's pages.
"""

from __future__ import annotations

import hashlib
import struct

from engine.cache.storage.base import KEY_BYTES
from engine.protocol import HostLayout

FORMAT = "quiesce-kv-1"  # a change of how a page lies in its record gives it another name
_SEED = b"sglang-cache-namespace-v1"


def seed(extra_key: str) -> bytes:
    """What the chain of a tenant begins with; nothing without one."""
    if not extra_key:
        return b""
    name = extra_key.encode()
    # The two parts are extra_key and cache_salt; the second one is never set here.
    return hashlib.sha256(_SEED + b"\x01" + struct.pack("<Q", len(name)) + name + b"\0").digest()


def chain(before: bytes, tokens: bytes) -> bytes:
    """The hash of a page: `before` is that of the page before (or the seed), `tokens` are 4 bytes
    each."""
    return hashlib.sha256(before + tokens).digest()


def identity(
    *,
    model: str,
    dtype: str,
    layout: HostLayout,
    kernel_layout: str,
    page_size: int,
    page_bytes: int,
    tp_rank: int = 0,
    tp_size: int = 1,
) -> bytes:
    """16 bytes that two ranks share whose pages are laid out alike. The DP rank is no part."""
    parts = (FORMAT, model, dtype, layout, kernel_layout, page_size, page_bytes, tp_rank, tp_size)
    return _digest(parts)


def fingerprint(identity: bytes, weight_checksum: str) -> bytes:
    """16 bytes: `identity` and the weights that the pages were computed with."""
    return _digest((identity.hex(), weight_checksum))


def page_key(fingerprint: bytes, page_hash: bytes) -> bytes:
    """What a record is kept under."""
    key = fingerprint + page_hash
    assert len(key) == KEY_BYTES, f"a key of {len(key)} bytes"
    return key


def _digest(parts: tuple[object, ...]) -> bytes:
    hasher = hashlib.sha256()
    for part in parts:
        text = str(part).encode()
        hasher.update(struct.pack("<Q", len(text)) + text)
    return hasher.digest()[:16]

"""Addresses of host memory, for clients that take pointers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from engine.cache.storage.base import StorageError


def address_of(memory: memoryview) -> int:
    """Where it begins. It must be writable, contiguous, and outlive every use of the number."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def addresses_in(pool: memoryview, pages: Sequence[memoryview]) -> list[int]:
    """Where each page begins. Raises StorageError for one that is no part of the pool."""
    start = address_of(pool)
    found = [address_of(page) for page in pages]
    for page, at in zip(pages, found, strict=True):
        if not start <= at <= start + len(pool) - len(page):
            raise StorageError("a page lies outside the memory that was registered")
    return found

"""Storage through NIXL: files (plugin POSIX) or objects of an S3 bucket (plugin OBJ).

It runs in a process of its own: a transfer cannot be called back, so one that takes too long would
go on writing into host pages that are in use again.
"""

from __future__ import annotations

from engine.cache.storage.isolated import IsolatedStorage
from engine.protocol import StorageBackend


class NixlStorage(IsolatedStorage):
    """Files or objects, by NIXL."""

    backend = StorageBackend.NIXL

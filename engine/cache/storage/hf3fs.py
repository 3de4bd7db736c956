"""Storage on 3FS through USRBIO: one file a rank, in slots of a record each.

Experimental: written against the published Python interface (`hf3fs_fuse.io`) and tried on a
stand-in only. It runs in a process of its own: an I/O that does not come back keeps writing into
the memory that it was given.
"""

from __future__ import annotations

from engine.cache.storage.isolated import IsolatedStorage
from engine.protocol import StorageBackend


class Hf3fsStorage(IsolatedStorage):
    """Slots of a file on 3FS."""

    backend = StorageBackend.HF3FS
    is_shared = False

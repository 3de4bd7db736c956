"""Storage through AIBrix KVCache: RocksDB (each rank its own), or files that ranks share (SHFS).

It runs in a process of its own: all of its settings are environment variables of the process.
"""

from __future__ import annotations

from engine.cache.storage.base import Site
from engine.cache.storage.isolated import IsolatedStorage
from engine.protocol import StorageBackend
from engine.protocol.storage_configs import AibrixConfig


class AibrixStorage(IsolatedStorage):
    """AIBrix with an L2 on this machine."""

    backend = StorageBackend.AIBRIX

    def __init__(self, config: AibrixConfig, site: Site) -> None:
        super().__init__(config, site)
        self.is_shared = config.l2_backend == "SHFS"

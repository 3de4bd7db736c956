"""NIXL as it runs in a process of its own: chooses files or objects."""

from __future__ import annotations

from collections.abc import Sequence

from engine.cache.storage.base import Site, Status, Storage, StorageError
from engine.cache.storage.nixl_files import NixlFiles
from engine.cache.storage.nixl_objects import NixlObjects
from engine.cache.storage.nixl_transfer import TransferError
from engine.protocol.storage_configs import NixlConfig


class NixlClient(Storage):
    """Files or objects, by NIXL."""

    def __init__(self, config: NixlConfig, site: Site) -> None:
        kind = NixlFiles if config.plugin == "POSIX" else NixlObjects
        self._kept = kind(config, site)

    def open(self, deadline: float) -> None:
        try:
            self._kept.open(deadline)
        except (TransferError, TimeoutError) as error:
            raise StorageError(str(error)) from error

    def batch_exists(self, keys: Sequence[bytes]) -> list[bool]:
        return self._kept.exist(keys) if keys else []

    def batch_get(self, keys: Sequence[bytes], buffers: Sequence[memoryview]) -> list[Status]:
        return self._kept.get(keys, buffers) if keys else []

    def batch_put(self, keys: Sequence[bytes], records: Sequence[memoryview]) -> list[Status]:
        return self._kept.put(keys, records) if keys else []

    def batch_delete(self, keys: Sequence[bytes]) -> None:
        if keys:
            self._kept.delete(keys)

    def clear(self, deadline: float) -> int:
        return self._kept.clear(deadline)

    def close(self, deadline: float) -> None:
        self._kept.close()

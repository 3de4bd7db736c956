"""AIBrix as it runs in a process of its own (`isolated_child.py`).

A record is one of its blocks, looked up by a hash of its own that is our key, so AIBrix needs to
know nothing of the model: heads and layers are numbers that give a block a record's length. Its
manager does not say that it may be called from two threads; a lock makes sure that it is not.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine.cache.storage import allowed, folders
from engine.cache.storage.base import Site, Status, Storage, StorageError
from engine.protocol.storage_configs import AibrixConfig

_TOKENS = 16  # of a block, as AIBrix counts
_HEAD_SIZE = 64
_UNIT_BYTES = _TOKENS * 2 * _HEAD_SIZE * 2  # keys and values of one head, 2 bytes each: 4 KiB
_GIB = 1 << 30
_LEAST_CAPACITY_GB = 0.0625
_MAX_TOKENS = 102_400


class AibrixClient(Storage):
    """Blocks of an AIBrix manager."""

    def __init__(self, config: AibrixConfig, site: Site) -> None:
        self._config, self._site = config, site
        self._folder = Path()
        self._manager: Any = None  # Any: a package without types
        self._lock = threading.Lock()

    def open(self, deadline: float) -> None:
        root = allowed.made_folder(self._site, self._config.path, "path")
        self._folder = folders.of_model(self._site, root)
        if self._config.l2_backend == "ROCKSDB":
            self._folder = folders.below(self._folder, f"rank-{self._site.dp_rank}")
        os.environ.update(self._environment())
        self._start()

    def _environment(self) -> dict[str, str]:
        config = self._config
        record_gb = 8 * self._site.record_bytes / _GIB
        settings = {
            "DEVICE": "cpu:0",  # "cpu" alone wants pinned memory, and with it CUDA
            "L1_CACHE_ENABLED": str(int(config.l1_capacity_gb > 0)),
            "L1_CACHE_CAPACITY_GB": max(config.l1_capacity_gb, record_gb, _LEAST_CAPACITY_GB),
            "L2_CACHE_BACKEND": config.l2_backend,
            "L2_CACHE_NAMESPACE": "quiesce",
            "L2_CACHE_INGESTION_TYPE": "ALL",
            "L2_CACHE_INGESTION_MAX_INFLIGHT_TOKENS": 0,  # a put is done when it returns
            "L2_CACHE_PER_TOKEN_TIMEOUT_MS": max(1, int(config.io_timeout * 1000 / _TOKENS)),
            "CHUNK_SIZE": 64,
            "ROCKSDB_ROOT": self._folder,
            "ROCKSDB_TTL_S": config.ttl,
            "SHFS_ROOT": self._folder,
            "TIME_MEASUREMENT_ENABLED": 0,
            "BREAKDOWN_MEASUREMENT_ENABLED": 0,
        }
        return {f"AIBRIX_KV_CACHE_OL_{name}": str(value) for name, value in settings.items()}

    def _start(self) -> None:
        import torch
        from aibrix_kvcache import BaseKVCacheManager, KVCacheConfig
        from aibrix_kvcache.spec import (
            KVCacheBlockLayout,
            KVCacheBlockSpec,
            KVCacheTensorSpec,
            ModelSpec,
        )

        heads = self._site.record_bytes // _UNIT_BYTES
        assert heads * _UNIT_BYTES == self._site.record_bytes, "a record that is not aligned"
        block = KVCacheBlockSpec(
            block_ntokens=_TOKENS,
            block_dtype=torch.float16,
            block_layout=KVCacheBlockLayout.NCLD,
            tensor_spec=KVCacheTensorSpec(
                heads=list(range(heads)), layers=[0], head_size=_HEAD_SIZE
            ),
        )
        try:
            self._manager = BaseKVCacheManager(
                KVCacheConfig(block_spec=block, model_spec=ModelSpec(_MAX_TOKENS))
            )
        except Exception as error:  # it names none: RocksDB's are plain ones
            text = str(error)
            if "lock" in text.lower():
                text = "another process uses this folder"
            raise StorageError(f"AIBrix does not start: {text[:300]}") from error

    def _hashes(self, key: bytes) -> Any:
        from aibrix_kvcache import BlockHashes

        return BlockHashes([key.hex()], _TOKENS)

    def batch_exists(self, keys: Sequence[bytes]) -> list[bool]:
        with self._lock:
            return [self._manager.exists(None, self._hashes(key)).is_ok() for key in keys]

    def batch_get(self, keys: Sequence[bytes], buffers: Sequence[memoryview]) -> list[Status]:
        return [self._get(key, buffer) for key, buffer in zip(keys, buffers, strict=True)]

    def _get(self, key: bytes, buffer: memoryview) -> Status:
        with self._lock:
            hashes = self._hashes(key)
            found = self._manager.acquire(None, hashes)
            if found.is_not_found():
                return Status.MISS
            if not found.is_ok():
                # A page of another length is an error that AIBrix does not tell from others. It is
                # removed, so that it is not an error for ever.
                if self._manager.exists(None, hashes).is_ok():
                    self._manager.delete(None, hashes)
                    return Status.MISS
                return Status.ERROR
            _, handle = found.get()
            try:
                buffer[:] = _bytes_of(handle)
            finally:
                handle.release()
            return Status.OK

    def batch_put(self, keys: Sequence[bytes], records: Sequence[memoryview]) -> list[Status]:
        wanted_bytes = len(keys) * self._site.record_bytes
        if not folders.has_room(self._folder, wanted_bytes, self._config.min_free_space):
            return [Status.FULL] * len(keys)
        return [self._put(key, record) for key, record in zip(keys, records, strict=True)]

    def _put(self, key: bytes, record: memoryview) -> Status:
        with self._lock:
            hashes = self._hashes(key)
            made = self._manager.allocate_for(None, hashes)
            if not made.is_ok():
                return Status.FULL
            handle = made.get()
            _bytes_of(handle)[:] = record
            # The manager takes the handle over, whatever comes of it.
            is_put = self._manager.put(None, hashes, handle).is_ok()
            # Two ranks that write the same page may trip over each other; one of them is enough.
            if not is_put and not self._manager.exists(None, hashes).is_ok():
                return Status.ERROR
            return Status.OK

    def batch_delete(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            for key in keys:
                self._manager.delete(None, self._hashes(key))

    def clear(self, deadline: float) -> int:
        with self._lock:
            self._stop()
            try:
                if self._config.l2_backend == "ROCKSDB":
                    return self._clear_database(deadline)
                return self._clear_files(deadline)
            finally:
                self._start()

    def _clear_database(self, deadline: float) -> int:
        import rocksdict

        gone = 0
        for folder in self._folder.glob("quiesce*"):
            database = rocksdict.Rdict(
                str(folder),
                rocksdict.Options(raw_mode=True),
                access_type=rocksdict.AccessType.read_write().with_ttl(self._config.ttl),
            )
            try:
                keys = list(database.keys())
                for key in keys:
                    if time.monotonic() > deadline:
                        raise StorageError(f"{gone} pages were cleared, then the time was over")
                    del database[key]
                    gone += 1
            finally:
                database.close()
        return gone

    def _clear_files(self, deadline: float) -> int:
        gone = 0
        # AIBrix names a file after its key in hexadecimal, and ours is in hexadecimal already.
        for path in self._folder.glob("quiesce*/??/??/" + "[0-9a-f]" * 8 + "*"):
            if time.monotonic() > deadline:
                raise StorageError(f"{gone} pages were cleared, then the time was over")
            with suppress(FileNotFoundError):  # Another rank clears, too.
                path.unlink()
                gone += not path.name.endswith(".tmp")
        return gone

    def _stop(self) -> None:
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.close()

    def close(self, deadline: float) -> None:
        with self._lock:
            self._stop()


def _bytes_of(handle: Any) -> memoryview:
    """The memory of a handle's only block."""
    import torch

    (block,) = handle.to_tensors()
    return memoryview(block.view(torch.uint8).flatten().numpy())

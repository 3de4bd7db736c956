"""EIC as it runs in a process of its own (`isolated_child.py`).

It cannot list what it keeps, and what it answers for a key that is not there is not published: so a
failed page of a batch that worked is a miss.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import eic

from engine.cache.storage import allowed, folders
from engine.cache.storage.addresses import address_of, addresses_in
from engine.cache.storage.base import Site, Status, Storage, StorageError
from engine.protocol.storage_configs import EicConfig

_SCHEME = "eic://"
_LOG_LEVEL = 2
_NO_TTL = -1
_MARK_BYTES = 16
_MANY = 1024  # keys of one question
_MAX_WRITTEN = 1 << 20


class EicError(Exception):
    """A call failed as a whole."""


class EicClient(Storage):
    """Keys of an EIC instance, `quiesce:<identity>:<key>`."""

    def __init__(self, config: EicConfig, site: Site) -> None:
        self._config, self._site = config, site
        self._prefix = f"quiesce:{site.identity.hex()}:"
        self._client: Any = None  # Any: a package without types
        self._written: dict[bytes, None] = {}  # in the order of writing

    def open(self, deadline: float) -> None:
        endpoint = self._config.remote_url.removeprefix(_SCHEME)
        host, _, port = endpoint.rpartition(":")
        allowed.endpoint(self._site, host, int(port), "remote_url")
        root = allowed.made_folder(self._site, self._config.eic_log_dir, "eic_log_dir")
        option = eic.InitOption()
        option.log_dir = str(folders.below(root, f"eic-rank-{self._site.dp_rank}"))
        option.log_level = eic.LogLevel(_LOG_LEVEL)
        option.transport_type = eic.TransportType(self._config.eic_trans_type)
        client = eic.Client()
        code = client.init(self._config.eic_instance_id, endpoint, option)
        if code != 0:
            raise StorageError(f"EIC at {endpoint} does not take this client, code {code}")
        memory = eic.MemoryInfo()
        memory.type = eic.MemoryType.MEMORY_CUDA  # what SGLang says of host memory, too
        memory.cuda_id = 0
        pool = eic.IOBuffers()
        pool.append(address_of(self._site.pool), len(self._site.pool), True)
        client.register_memory(pool, memory)
        self._client = client

    def _names(self, keys: Sequence[bytes]) -> Any:
        names = eic.StringVector()
        for key in keys:
            names.append(self._prefix + key.hex())
        return names

    def _buffers(self, pages: Sequence[memoryview]) -> Any:
        buffers = eic.IOBuffers()
        for page, at in zip(pages, addresses_in(self._site.pool, pages), strict=True):
            buffers.append(at, len(page), True)
        return buffers

    def _option(self, kind: Any) -> Any:
        option = kind()
        option.ns = self._config.eic_namespace
        return option

    def batch_exists(self, keys: Sequence[bytes]) -> list[bool]:
        found: list[bool] = []
        for start in range(0, len(keys), _MANY):
            part = keys[start : start + _MANY]
            option = self._option(eic.ExistOption)
            status, outcome = self._client.mexist(self._names(part), option)
            found += [code == eic.StatusCode.SUCCESS for code in _codes(status, outcome, part)]
        return found

    def batch_get(self, keys: Sequence[bytes], buffers: Sequence[memoryview]) -> list[Status]:
        if not keys:
            return []
        mark = secrets.token_bytes(_MARK_BYTES)  # A value that is too short leaves it in its place.
        for buffer in buffers:
            buffer[-_MARK_BYTES:] = mark
        option = self._option(eic.GetOption)
        status, _, outcome = self._client.mget(self._names(keys), option, self._buffers(buffers))
        if status not in (eic.StatusCode.SUCCESS, eic.StatusCode.PARTIAL_FAILED):
            if any(self.batch_exists(keys)):
                raise EicError(f"EIC answered {status}")
            return [Status.MISS] * len(keys)
        return [
            Status.OK
            if code == eic.StatusCode.SUCCESS and buffer[-_MARK_BYTES:] != mark
            else Status.MISS
            for code, buffer in zip(_codes(status, outcome, keys), buffers, strict=True)
        ]

    def batch_put(self, keys: Sequence[bytes], records: Sequence[memoryview]) -> list[Status]:
        if not keys:
            return []
        option = self._option(eic.SetOption)
        option.ttl_second = self._config.eic_kv_ttl or _NO_TTL
        status, outcome = self._client.mset(self._names(keys), self._buffers(records), option)
        is_kept = [code == eic.StatusCode.SUCCESS for code in _codes(status, outcome, keys)]
        if not any(is_kept):
            raise EicError(f"EIC answered {status}")
        self._written.update((key, None) for key, kept in zip(keys, is_kept, strict=True) if kept)
        while len(self._written) > _MAX_WRITTEN:
            del self._written[next(iter(self._written))]
        return [Status.OK if kept else Status.ERROR for kept in is_kept]

    def batch_delete(self, keys: Sequence[bytes]) -> None:
        for start in range(0, len(keys), _MANY):
            part = keys[start : start + _MANY]
            self._client.mdel(self._names(part), self._option(eic.DelOption))
        for key in keys:
            self._written.pop(key, None)

    def clear(self, deadline: float) -> int:
        """Remove what this client has written, and say that this need not be all."""
        count = len(self._written)
        self.batch_delete(list(self._written))
        raise StorageError(
            f"EIC cannot list its pages: the {count} that this rank wrote since it was attached "
            "are removed, older ones end with eic_kv_ttl"
        )

    def close(self, deadline: float) -> None:
        self._client = None  # It has no close; its process ends after this.


def _codes(status: Any, outcome: Any, keys: Sequence[bytes]) -> list[Any]:
    """A code for each key. Raises EicError when there are none."""
    codes = list(outcome.status_codes)
    if len(codes) == len(keys):
        return codes
    if status == eic.StatusCode.SUCCESS:
        return [status] * len(keys)
    raise EicError(f"EIC answered {status}")

"""The Mooncake client, as it runs in a process of its own (`isolated_child.py`).

Its library bounds its calls by environment variables only, which are set before each `open`. It
must never be closed during a call, which the base class promises.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

# Read by the library when it is loaded; it writes a line for each key otherwise.
os.environ.setdefault("MC_LOG_LEVEL", "ERROR")

from mooncake.store import MooncakeDistributedStore  # after its environment

from engine.cache.storage import allowed
from engine.cache.storage.addresses import address_of, addresses_in
from engine.cache.storage.base import Site, Stats, Status, Storage, StorageError
from engine.protocol.storage_configs import MooncakeConfig

_NO_SPACE = -200
_TOO_SMALL = -600
_MISSES = frozenset({-704, -707})  # not found; its lease ran out while it was read
_WORDS = {
    -1: "a failure that it does not name",
    _NO_SPACE: "no space",
    -800: "a transfer failed, so the client that keeps the page may be gone",
    -900: "the master cannot be reached",
    -901: "the master did not answer in time",
}
_P2P = "P2PHANDSHAKE"
# An operator's own choice stands.
_PRESET = frozenset(os.environ) & {
    *("MC_RPC_TIMEOUT_MS", "MC_RPC_CONNECT_TIMEOUT_MS", "MC_STORE_CLIENT_SETUP_RETRIES")
}


class MooncakeError(Exception):
    """A call failed for all of its pages."""

    def __init__(self, code: int) -> None:
        super().__init__(f"Mooncake answered {code}: {_WORDS.get(code, 'an error of its own')}")
        self.code = code


class MooncakeClient(Storage):
    """Memory of a Mooncake store."""

    def __init__(self, config: MooncakeConfig, site: Site) -> None:
        self._config, self._site = config, site
        self._prefix = f"quiesce:{site.identity.hex()}:"
        self._store: Any = None  # Any: a client without types
        self._pool_address = 0

    def open(self, deadline: float) -> None:
        self._check_endpoints()
        self._find_master(deadline)
        _set_limits(self._config.io_timeout)
        self._store = MooncakeDistributedStore()
        code = self._store.setup(
            self._config.local_hostname,
            self._config.metadata_server,
            self._config.global_segment_size,
            self._config.local_buffer_size,
            self._config.protocol,
            self._config.device_name,
            self._config.master_server_address,
        )
        if code != 0:
            self.close(deadline)
            raise StorageError(
                f"the setup with the Mooncake master at {self._config.master_server_address} "
                f"failed with code {code}"
            )
        self._pool_address = address_of(self._site.pool)
        code = self._store.register_buffer(self._pool_address, len(self._site.pool))
        if code != 0:
            self._pool_address = 0
            self.close(deadline)
            raise StorageError(f"Mooncake refuses the host pool, code {code}")

    def _check_endpoints(self) -> None:
        host, port = _split(self._config.master_server_address, "master_server_address")
        allowed.endpoint(self._site, host, port, "master_server_address")
        if self._config.metadata_server == _P2P:
            return
        try:
            url = urlsplit(self._config.metadata_server)
            if url.scheme not in ("http", "https") or not url.hostname or url.username:
                raise ValueError("no http address")
            allowed.endpoint(self._site, url.hostname, url.port or 80, "metadata_server")
        except ValueError as error:
            raise StorageError(
                "metadata_server is neither P2PHANDSHAKE nor http://host:port/…"
            ) from error

    def _find_master(self, deadline: float) -> None:
        """Fail in a moment where `setup` would block for a minute and a half."""
        host, port = _split(self._config.master_server_address, "master_server_address")
        left = max(0.001, min(deadline - time.monotonic(), self._config.io_timeout))
        try:
            socket.create_connection((host, port), left).close()
        except OSError as error:
            raise StorageError(
                f"no Mooncake master answers at {host}:{port}: {error.strerror or error}"
            ) from error

    def _names(self, keys: Sequence[bytes]) -> list[str]:
        return [self._prefix + key.hex() for key in keys]

    def batch_exists(self, keys: Sequence[bytes]) -> list[bool]:
        codes: list[int] = self._store.batch_is_exist(self._names(keys)) if keys else []
        _raise_if_all_failed(codes)
        return [code == 1 for code in codes]

    def batch_get(self, keys: Sequence[bytes], buffers: Sequence[memoryview]) -> list[Status]:
        if not keys:
            return []
        names = self._names(keys)
        at = addresses_in(self._site.pool, buffers)
        codes: list[int] = self._store.batch_get_into(names, at, [len(b) for b in buffers])
        _raise_if_all_failed([0 if code in _MISSES else code for code in codes])
        statuses = [
            _get_status(code, len(buffer)) for code, buffer in zip(codes, buffers, strict=True)
        ]
        # A key that is there is not written again; one of another length would stay for ever.
        wrong = [
            name
            for name, code, status in zip(names, codes, statuses, strict=True)
            if status == Status.MISS and (code >= 0 or code == _TOO_SMALL)
        ]
        if wrong:
            self._store.batch_remove(wrong, True)
        return statuses

    def batch_put(self, keys: Sequence[bytes], records: Sequence[memoryview]) -> list[Status]:
        if not keys:
            return []
        at = addresses_in(self._site.pool, records)
        codes: list[int] = self._store.batch_put_from(
            self._names(keys), at, [len(record) for record in records]
        )
        _raise_if_all_failed([0 if code == _NO_SPACE else code for code in codes])
        return [_put_status(code) for code in codes]

    def batch_delete(self, keys: Sequence[bytes]) -> None:
        if keys:
            # True: also what was read a moment ago, and is leased to its reader.
            codes = self._store.batch_remove(self._names(keys), True)
            _raise_if_all_failed([0 if code in _MISSES else code for code in codes])

    def clear(self, deadline: float) -> int:
        count: int = self._store.remove_by_regex(f"^{self._prefix}[0-9a-f]+$", True)
        if count < 0:
            raise StorageError(str(MooncakeError(count)))
        return count

    def close(self, deadline: float) -> None:
        store, self._store = self._store, None
        if store is None:
            return
        if self._pool_address:
            store.unregister_buffer(self._pool_address)
            self._pool_address = 0
        store.close()

    def stats(self) -> Stats:
        return Stats(capacity_bytes=self._config.global_segment_size)


def _set_limits(io_timeout: float) -> None:
    # A put asks the master twice; both are to fit into io_timeout.
    milliseconds = str(max(100, int(io_timeout * 1000 / 2)))
    limits = {
        "MC_RPC_TIMEOUT_MS": milliseconds,
        "MC_RPC_CONNECT_TIMEOUT_MS": milliseconds,
        "MC_STORE_CLIENT_SETUP_RETRIES": "2",
    }
    os.environ.update({name: value for name, value in limits.items() if name not in _PRESET})


def _split(address: str, what: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 0xFFFF:
        raise StorageError(f"{what} is not host:port")
    return host.strip("[]"), int(port)


def _get_status(code: int, record_bytes: int) -> Status:
    if code == record_bytes:
        return Status.OK
    if code >= 0 or code == _TOO_SMALL or code in _MISSES:
        return Status.MISS
    return Status.ERROR


def _put_status(code: int) -> Status:
    if code == 0:
        return Status.OK
    return Status.FULL if code == _NO_SPACE else Status.ERROR


def _raise_if_all_failed(codes: Sequence[int]) -> None:
    """The cause is worth more than a list of ERROR, and nothing is lost by raising it."""
    if codes and all(code < 0 and code != _TOO_SMALL for code in codes):
        raise MooncakeError(codes[0])

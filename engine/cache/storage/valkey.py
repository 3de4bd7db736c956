"""Storage in Valkey or Redis: a key a page, `<prefix>:<identity>:<key>` in hexadecimal.

One connection for reads and one for writes. What the server evicts is a miss; a server that evicts
nothing says OOM, which is FULL.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit

from engine.cache.storage import allowed, resp
from engine.cache.storage.base import Site, Status, Storage, StorageError
from engine.cache.storage.resp import Address, RespConnection, RespError
from engine.protocol.storage_configs import ValkeyConfig

_DEFAULT_PORT = 6379
_SCAN_COUNT = b"1000"
Result = TypeVar("Result")


class ValkeyStorage(Storage):
    """Keys of a Valkey or Redis server."""

    def __init__(self, config: ValkeyConfig, site: Site) -> None:
        self._config, self._site = config, site
        self._prefix = f"{config.prefix}:{site.identity.hex()}:".encode()
        self._reads = self._writes = _Lane(config, Address())

    def open(self, deadline: float) -> None:
        address = _address(self._config, self._site)
        self._reads, self._writes = _Lane(self._config, address), _Lane(self._config, address)
        try:
            for lane in (self._reads, self._writes):
                lane.connect(deadline)
        except (OSError, RespError) as error:
            self.close(deadline)
            said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise StorageError(f"cannot use the server at {address}: {said}") from error

    def _key(self, key: bytes) -> bytes:
        return self._prefix + key.hex().encode()

    def batch_exists(self, keys: Sequence[bytes]) -> list[bool]:
        if not keys:
            return []
        asked = b"".join(resp.command([b"STRLEN", self._key(key)]) for key in keys)

        def ask(connection: RespConnection) -> list[resp.Reply]:
            connection.send([asked])
            return [connection.reply() for _ in keys]

        replies = self._reads.call(ask)
        _raise_if_all_failed(replies)
        return [reply == self._site.record_bytes for reply in replies]

    def batch_get(self, keys: Sequence[bytes], buffers: Sequence[memoryview]) -> list[Status]:
        if not keys:
            return []
        asked = b"".join(resp.command([b"GET", self._key(key)]) for key in keys)

        def ask(connection: RespConnection) -> list[int | RespError | None]:
            connection.send([asked])
            return [connection.value_into(buffer) for buffer in buffers]

        replies = self._reads.call(ask)
        _raise_if_all_failed(replies)
        return [
            Status.ERROR
            if isinstance(reply, RespError)
            else (Status.OK if reply == len(buffer) else Status.MISS)
            for reply, buffer in zip(replies, buffers, strict=True)
        ]

    def batch_put(self, keys: Sequence[bytes], records: Sequence[memoryview]) -> list[Status]:
        if not keys:
            return []
        views = [
            view
            for key, record in zip(keys, records, strict=True)
            for view in resp.set_views(self._key(key), record, self._config.ttl)
        ]

        def ask(connection: RespConnection) -> list[resp.Reply]:
            connection.send(views)
            return [connection.reply() for _ in keys]

        replies = self._writes.call(ask)
        full = [isinstance(reply, RespError) and reply.code == "OOM" for reply in replies]
        if not any(full):
            _raise_if_all_failed(replies)
        return [
            Status.FULL if is_full else Status.ERROR if isinstance(reply, RespError) else Status.OK
            for reply, is_full in zip(replies, full, strict=True)
        ]

    def batch_delete(self, keys: Sequence[bytes]) -> None:
        self._unlink([self._key(key) for key in keys])

    def _unlink(self, names: Sequence[bytes], deadline: float | None = None) -> int:
        if not names:
            return 0
        count = self._writes.call(lambda connection: connection.ask([b"UNLINK", *names]), deadline)
        return count if isinstance(count, int) else 0

    def clear(self, deadline: float) -> int:
        gone, cursor = 0, b"0"
        try:
            while True:
                cursor, keys = self._scan(cursor, deadline)
                gone += self._unlink(keys, deadline)
                if cursor == b"0":
                    return gone
        except (OSError, RespError) as error:
            raise StorageError(f"{gone} pages were cleared, then: {error}") from error

    def _scan(self, cursor: bytes, deadline: float) -> tuple[bytes, list[bytes]]:
        words = [b"SCAN", cursor, b"MATCH", self._prefix + b"*", b"COUNT", _SCAN_COUNT]
        match self._writes.call(lambda connection: connection.ask(words), deadline):
            case [bytes() as cursor, list() as keys]:
                return cursor, [key for key in keys if isinstance(key, bytes)]
        raise resp.RespProtocolError("the server's answer to SCAN is none")

    def close(self, deadline: float) -> None:
        for lane in (self._reads, self._writes):
            lane.close()


class _Lane:
    """One connection, made again when it was lost; one call at a time."""

    def __init__(self, config: ValkeyConfig, address: Address) -> None:
        self._config, self._address = config, address
        self._connection: RespConnection | None = None
        self._lock = threading.Lock()

    def connect(self, deadline: float) -> RespConnection:
        until = min(deadline, time.monotonic() + self._config.connect_timeout)
        self._connection = RespConnection(self._address, until)
        return self._connection

    def call(
        self, ask: Callable[[RespConnection], Result], deadline: float | None = None
    ) -> Result:
        """What `ask` returns, within io_timeout. A connection that turns out to have been closed
        before anything was answered is replaced, once. Raises OSError, RespError."""
        until = time.monotonic() + self._config.io_timeout
        until = until if deadline is None else min(until, deadline)
        with self._lock:
            known = self._connection
            if known is not None:
                try:
                    return self._ask(known, ask, until)
                except ConnectionError:
                    if known.has_answered:
                        raise
            return self._ask(self.connect(until), ask, until)

    def _ask(
        self, connection: RespConnection, ask: Callable[[RespConnection], Result], until: float
    ) -> Result:
        connection.begin(until)
        try:
            return ask(connection)
        except RespError:
            raise  # The connection is fine: the whole reply was read.
        except BaseException:
            connection.close()
            self._connection = None
            raise

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def _address(config: ValkeyConfig, site: Site) -> Address:
    """Where the url points, if it may. Raises StorageError."""
    try:
        url = urlsplit(config.url)
        port = url.port or _DEFAULT_PORT
        database = parse_qs(url.query).get("db", ["0"])[0]
        if url.scheme != "unix":
            database = url.path.strip("/") or database
        number = int(database)
    except ValueError as error:
        raise StorageError("url is none of this backend's: see its help") from error
    if url.scheme == "unix":
        path = allowed.folder(site, url.path, "url")
        return Address(
            path=str(path), database=number, username=config.username, secret=config.password
        )
    if not url.hostname:
        raise StorageError("url names no host")
    allowed.endpoint(site, url.hostname, port, "url")
    return Address(
        host=url.hostname,
        port=port,
        is_tls=url.scheme in ("valkeys", "rediss"),
        database=number,
        username=config.username,
        secret=config.password,
    )


def _raise_if_all_failed(replies: Sequence[object]) -> None:
    errors = [reply for reply in replies if isinstance(reply, RespError)]
    if errors and len(errors) == len(replies):
        raise errors[0]

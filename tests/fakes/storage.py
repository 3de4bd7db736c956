"""A storage backend in memory that does what a script says: fails, delays, forgets, fills up.

For tests of what calls a backend. `Shelf` is the store; `ScriptedStorage`s of several ranks may
share one, and it outlives them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.cache.storage.base import Site, Stats, Status, Storage, StorageError
from engine.protocol.storage_configs import StorageConfig

Hook = Callable[[int], None]


@dataclass
class Shelf:
    """What is kept: record by key, for all who share it. Tests may change it as they like."""

    records: dict[bytes, bytes] = field(default_factory=dict)
    identity_of: dict[bytes, bytes] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class Script:
    """What goes wrong, and when. Pages and calls count from 1; one script may serve many storages.

    `put_errors` and `get_errors` are raised by the call that comes to that page of all pages put
    (or got) so far; the pages before it in the batch are done. `status` entries are answered for
    that page alone. `vanish` are pages of a get that a store no longer has, counted within a batch.
    """

    open_error: BaseException | None = None
    open_delay_s: float = 0.0
    close_error: BaseException | None = None
    close_delay_s: float = 0.0
    clear_error: BaseException | None = None
    put_errors: dict[int, BaseException] = field(default_factory=dict)
    get_errors: dict[int, BaseException] = field(default_factory=dict)
    exists_errors: dict[int, BaseException] = field(default_factory=dict)  # by call
    put_status: dict[int, Status] = field(default_factory=dict)
    get_status: dict[int, Status] = field(default_factory=dict)
    vanish: set[int] = field(default_factory=set)  # by place in its batch
    damage: Callable[[bytes, memoryview], None] | None = None  # (key, record as got), in place
    delay_s: float = 0.0  # of every data call
    put_gate: threading.Event | None = None  # a call waits until it is set
    get_gate: threading.Event | None = None
    exists_gate: threading.Event | None = None
    capacity_pages: int | None = None  # more are FULL
    is_dead: bool = False  # every call raises OSError


class ScriptedStorage(Storage):
    """Keeps records in a Shelf, as its Script allows. Counts what it was asked."""

    def __init__(
        self,
        config: StorageConfig | None = None,
        site: Site | None = None,
        *,
        shelf: Shelf | None = None,
        script: Script | None = None,
    ) -> None:
        self.config, self.site = config, site
        self.shelf = shelf if shelf is not None else Shelf()
        self.script = script if script is not None else Script()
        self.is_open = False
        self.open_calls = self.close_calls = self.clear_calls = 0
        self.exists_calls = self.get_calls = self.put_calls = 0
        self.put_pages = self.get_pages = 0
        self.in_call = 0  # data calls that have not come back
        self.put_entered = threading.Event()  # set by the first put, before its gate
        self.get_entered = threading.Event()
        self.put_keys: list[list[bytes]] = []  # by batch
        self.got_keys: list[list[bytes]] = []
        self.told_prefixes: list[list[bytes]] = []
        self._count = threading.Lock()

    def open(self, deadline: float) -> None:
        self.open_calls += 1
        time.sleep(self.script.open_delay_s)
        if self.script.open_error is not None:
            raise self.script.open_error
        if self.script.is_dead:
            raise StorageError("the scripted store is dead")
        self.is_open = True

    def follows(self, prefix_keys: Sequence[bytes]) -> None:
        self.told_prefixes.append(list(prefix_keys))

    def batch_exists(self, keys: Sequence[bytes]) -> list[bool]:
        self.exists_calls += 1
        with _Call(self, self.script.exists_gate):
            error = self.script.exists_errors.get(self.exists_calls)
            if error is not None:
                raise error
            with self.shelf.lock:
                return [key in self.shelf.records for key in keys]

    def batch_get(self, keys: Sequence[bytes], buffers: Sequence[memoryview]) -> list[Status]:
        self.get_calls += 1
        self.got_keys.append(list(keys))
        self.get_entered.set()
        with _Call(self, self.script.get_gate):
            return [self._get(i, *page) for i, page in enumerate(zip(keys, buffers, strict=True))]

    def _get(self, place: int, key: bytes, buffer: memoryview) -> Status:
        self.get_pages += 1
        if self.get_pages in self.script.get_errors:
            raise self.script.get_errors[self.get_pages]
        if self.get_pages in self.script.get_status:
            return self.script.get_status[self.get_pages]
        with self.shelf.lock:
            record = self.shelf.records.get(key)
        if record is None or len(record) != len(buffer) or place + 1 in self.script.vanish:
            return Status.MISS
        buffer[:] = record
        if self.script.damage is not None:
            self.script.damage(key, buffer)
        return Status.OK

    def batch_put(self, keys: Sequence[bytes], records: Sequence[memoryview]) -> list[Status]:
        self.put_calls += 1
        self.put_keys.append(list(keys))
        self.put_entered.set()
        with _Call(self, self.script.put_gate):
            return [self._put(*page) for page in zip(keys, records, strict=True)]

    def _put(self, key: bytes, record: memoryview) -> Status:
        self.put_pages += 1
        if self.put_pages in self.script.put_errors:
            raise self.script.put_errors[self.put_pages]
        if self.put_pages in self.script.put_status:
            return self.script.put_status[self.put_pages]
        capacity = self.script.capacity_pages
        with self.shelf.lock:
            is_new = key not in self.shelf.records
            if capacity is not None and is_new and len(self.shelf.records) >= capacity:
                return Status.FULL
            self.shelf.records[key] = bytes(record)
            self.shelf.identity_of[key] = self.site.identity if self.site is not None else b""
        return Status.OK

    def batch_delete(self, keys: Sequence[bytes]) -> None:
        with _Call(self, None), self.shelf.lock:
            for key in keys:
                self.shelf.records.pop(key, None)

    def clear(self, deadline: float) -> int:
        self.clear_calls += 1
        if self.script.clear_error is not None:
            raise self.script.clear_error
        own = self.site.identity if self.site is not None else b""
        with self.shelf.lock:
            mine = [key for key in self.shelf.records if self.shelf.identity_of.get(key) == own]
            for key in mine:
                del self.shelf.records[key]
        return len(mine)

    def close(self, deadline: float) -> None:
        assert self.in_call == 0, f"closed during {self.in_call} calls"
        self.close_calls += 1
        time.sleep(self.script.close_delay_s)
        self.is_open = False
        if self.script.close_error is not None:
            raise self.script.close_error

    def stats(self) -> Stats:
        with self.shelf.lock:
            sizes = [len(record) for record in self.shelf.records.values()]
        return Stats(stored_pages=len(sizes), used_bytes=sum(sizes))


class _Call:
    """One data call: counted, delayed, held at its gate."""

    def __init__(self, storage: ScriptedStorage, gate: threading.Event | None) -> None:
        self._storage, self._gate = storage, gate

    def __enter__(self) -> None:
        storage = self._storage
        assert storage.is_open, "a call of a storage that is not open"
        with storage._count:
            storage.in_call += 1
        try:
            if self._gate is not None and not self._gate.wait(60):
                raise TimeoutError("the test never opened the gate")
            time.sleep(storage.script.delay_s)
            if storage.script.is_dead:
                raise OSError("the scripted store is dead")
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        with self._storage._count:
            self._storage.in_call -= 1

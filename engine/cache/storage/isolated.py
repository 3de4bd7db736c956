"""A backend in a process of its own, for clients whose library may stop or end their process.

The rank keeps serving whatever that library does: a call that does not come back ends the child,
and the next call starts another one. Pages are copied through shared memory, 16 MiB each way.
"""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import msgspec

from engine.cache.storage import allowed
from engine.cache.storage import isolated_wire as wire
from engine.cache.storage.base import Site, Status, Storage, StorageError
from engine.protocol import StorageBackend
from engine.protocol.storage_configs import StorageConfig

_CHILD_MODULE = "engine.cache.storage.isolated_child"
_LANES = ("control", "reads", "writes")
_START_S = 5.0  # to start Python and load a library, once a call finds the child gone
_KILL_S = 2.0


class IsolatedStorage(Storage):
    """The parent's half: hands each call to the child that runs the backend."""

    backend: ClassVar[StorageBackend]
    is_tcp: ClassVar[bool] = True  # what its endpoints name takes TCP connections

    def __init__(self, config: StorageConfig, site: Site) -> None:
        self._config, self._site = config, site
        self._child: _Child | None = None
        self._starting = threading.Lock()
        self._is_open = False

    @property
    def child_pid(self) -> int:
        """Of the process that runs the backend; 0 without one."""
        child = self._child
        return child.process.pid if child is not None else 0

    def open(self, deadline: float) -> None:
        if self.is_tcp:
            allowed.find_servers(self._site, self._config, self.backend, deadline)
        with self._starting:
            self._start(deadline)
            self._is_open = True

    def _start(self, deadline: float) -> _Child:
        if time.monotonic() >= deadline:
            raise StorageError(f"{self.backend} cannot be opened: no time was left")
        self._child = child = _Child(self.backend, self._config, self._site)
        try:
            child.ask("control", wire.Ask("open", time_left_s=deadline - time.monotonic()))
        except (OSError, _ChildError) as error:
            self._end()
            raise StorageError(f"{self.backend} cannot be opened: {error}") from error
        except StorageError:
            self._end()
            raise
        return child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def _running(self) -> _Child:
        """The child; another one when the last one has ended. Raises StorageError."""
        with self._starting:
            if not self._is_open:
                raise StorageError(f"{self.backend} is not open")
            if self._child is None or self._child.has_ended:
                self._end()
                self._start(time.monotonic() + self._config.io_timeout + _START_S)
            assert self._child is not None, "a child that did not start raises"
            return self._child

    def batch_exists(self, keys: Sequence[bytes]) -> list[bool]:
        if not keys:
            return []
        return self._running().ask("reads", wire.Ask("exists", list(keys), self._limit_s)).found

    @property
    def _limit_s(self) -> float:
        """A call that takes longer than this is not coming back."""
        return 2 * self._config.io_timeout + 1.0

    def batch_get(self, keys: Sequence[bytes], buffers: Sequence[memoryview]) -> list[Status]:
        statuses: list[Status] = []
        while len(statuses) < len(keys):
            child = self._running()
            part = slice(len(statuses), len(statuses) + child.stage_slots)
            answer = child.ask("reads", wire.Ask("get", list(keys[part]), self._limit_s))
            for buffer, status, slot in zip(
                buffers[part], answer.statuses, child.stage("reads"), strict=False
            ):
                if status == Status.OK:
                    buffer[:] = slot
            statuses += answer.statuses
        return statuses

    def batch_put(self, keys: Sequence[bytes], records: Sequence[memoryview]) -> list[Status]:
        statuses: list[Status] = []
        while len(statuses) < len(keys):
            child = self._running()
            part = slice(len(statuses), len(statuses) + child.stage_slots)
            for record, slot in zip(records[part], child.stage("writes"), strict=False):
                slot[:] = record
            ask = wire.Ask("put", list(keys[part]), self._limit_s)
            statuses += child.ask("writes", ask).statuses
        return statuses

    def batch_delete(self, keys: Sequence[bytes]) -> None:
        if keys:
            self._running().ask("writes", wire.Ask("delete", list(keys), self._limit_s))

    def clear(self, deadline: float) -> int:
        ask = wire.Ask("clear", time_left_s=deadline - time.monotonic())
        try:
            return self._running().ask("control", ask).count
        except (OSError, _ChildError) as error:
            raise StorageError(f"{self.backend} did not clear: {error}") from error

    def close(self, deadline: float) -> None:
        self._is_open = False
        child = self._child
        if child is not None and not child.has_ended:
            # What does not close in time is ended; that is what the process is for.
            with suppress(OSError, _ChildError, StorageError):
                child.ask("control", wire.Ask("close", time_left_s=deadline - time.monotonic()))
                child.process.wait(max(0.1, deadline - time.monotonic()))
        self._end()


class _ChildError(Exception):
    """What a backend raised, as its sentence."""


class _Child:
    """The process, a socket a lane, and the stage."""

    def __init__(self, backend: StorageBackend, config: StorageConfig, site: Site) -> None:
        self.stage_slots = max(1, min(128, wire.STAGE_BYTES // site.record_bytes))
        size = 2 * self.stage_slots * site.record_bytes
        stage = os.memfd_create("quiesce-stage")
        pairs = [socket.socketpair() for _ in _LANES]
        try:
            os.ftruncate(stage, size)
            memory = memoryview(mmap.mmap(stage, size))
            self.process = _spawn(stage, [far for _, far in pairs])
        except OSError as error:
            for near, _ in pairs:
                near.close()
            raise StorageError(f"{backend} has no process: {error.strerror}") from error
        finally:
            os.close(stage)
            for _, far in pairs:
                far.close()
        self._memory, self._record_bytes = memory, site.record_bytes
        self._ends = dict(zip(_LANES, (near for near, _ in pairs), strict=True))
        self._locks = {lane: threading.Lock() for lane in _LANES}
        self.has_ended = False
        start = wire.Start(
            backend=backend,
            config=msgspec.msgpack.encode(config),
            model=site.model,
            identity=site.identity,
            dp_rank=site.dp_rank,
            record_bytes=site.record_bytes,
            layout=site.layout,
            roots=[str(root) for root in site.roots],
            endpoints=list(site.endpoints),
            stage_slots=self.stage_slots,
        )
        with suppress(OSError):  # A child that is gone already is noticed by the first call.
            wire.send(self._ends["control"], start, _START_S)

    def stage(self, lane: str) -> list[memoryview]:
        """Slots of a lane's half."""
        start = self.stage_slots * self._record_bytes * (lane == "writes")
        size = self._record_bytes
        return [
            self._memory[start + i * size : start + (i + 1) * size] for i in range(self.stage_slots)
        ]

    def ask(self, lane: str, ask: wire.Ask) -> wire.Answer:
        """Raises StorageError or _ChildError as the backend did, OSError when it does not answer:
        then the child is ended."""
        try:
            with self._locks[lane]:
                wire.send(self._ends[lane], ask, max(0.1, ask.time_left_s))
                answer = wire.receive_answer(self._ends[lane], max(0.1, ask.time_left_s))
        except (OSError, msgspec.MsgspecError) as error:
            self.kill()
            raise ConnectionResetError(f"the client's process: {error}") from error
        if answer.is_last:
            self.kill()
        if answer.error:
            raise (StorageError if answer.is_storage_error else _ChildError)(answer.error)
        return answer

    def kill(self) -> None:
        """The other lanes' calls come back with an error."""
        self.has_ended = True
        self.process.kill()

    def end(self) -> None:
        """Wait for it and for calls under way, which fail, and let go of everything."""
        self.kill()
        with suppress(subprocess.TimeoutExpired):  # in a call of the kernel: it goes when it can
            self.process.wait(_KILL_S)
        for lane, end in self._ends.items():
            is_mine = self._locks[lane].acquire(timeout=_KILL_S)
            end.close()
            if is_mine:
                self._locks[lane].release()


def _spawn(stage: int, ends: list[socket.socket]) -> subprocess.Popen[bytes]:
    numbers = [stage, *(end.fileno() for end in ends)]
    # It finds packages where this process does.
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
    }
    return subprocess.Popen(  # noqa: S603  # our own module, and numbers
        [sys.executable, "-P", "-m", _CHILD_MODULE, *map(str, numbers)],
        pass_fds=numbers,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )

"""The process of an isolated backend: runs its calls, and ends when its parent does.

Started by `isolated.py` with the numbers of the stage and of a socket a lane.
"""

from __future__ import annotations

import importlib
import mmap
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import msgspec

from engine.cache.storage import isolated_wire as wire
from engine.cache.storage.base import Site, Storage, StorageError
from engine.protocol import HostLayout, StorageBackend
from engine.protocol.storage_configs import CONFIGS

# What may run here; nothing else is ever imported by name.
_CLIENTS = {
    StorageBackend.MOONCAKE: ("mooncake_client", "MooncakeClient"),
    StorageBackend.NIXL: ("nixl_client", "NixlClient"),
    StorageBackend.AIBRIX: ("aibrix_client", "AibrixClient"),
    StorageBackend.HF3FS: ("hf3fs_client", "Hf3fsClient"),
    StorageBackend.EIC: ("eic_client", "EicClient"),
}


def main(numbers: list[int]) -> None:
    """Serve the three lanes until the parent closes its end, or `close` is done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the parent's to handle
    stage, *rest = numbers
    control, reads, writes = (socket.socket(fileno=number) for number in rest)
    start = wire.receive_start(control)
    half = start.stage_slots * start.record_bytes
    memory = memoryview(mmap.mmap(stage, 2 * half))
    backend = _Backend(start, memory)
    for end, part in ((reads, memory[:half]), (writes, memory[half:])):
        threading.Thread(target=_serve, args=(end, backend, part), daemon=True).start()
    _serve(control, backend, memory)


def _serve(end: socket.socket, backend: _Backend, part: memoryview) -> None:
    try:
        while True:
            ask = wire.receive_ask(end)
            wire.send(end, backend.answer(ask, part))
            if ask.call == "close":
                break
    except OSError:
        pass  # The parent is gone: so is the reason for this process.
    # No clean end: other threads, and those of the library, may be in the middle of something.
    os._exit(0)


class _Backend:
    """The backend, loaded by the first call, `open`."""

    def __init__(self, start: wire.Start, memory: memoryview) -> None:
        self._start, self._record_bytes = start, start.record_bytes
        self._site = Site(
            model=start.model,
            identity=start.identity,
            dp_rank=start.dp_rank,
            record_bytes=start.record_bytes,
            layout=HostLayout(start.layout),
            roots=tuple(map(Path, start.roots)),
            endpoints=tuple(start.endpoints),
            pool=memory,
        )
        self._storage: Storage | None = None

    def _load(self) -> Storage:
        name = StorageBackend(self._start.backend)
        config = msgspec.msgpack.decode(self._start.config, type=CONFIGS[name])
        module, kind = _CLIENTS[name]
        try:
            made = getattr(importlib.import_module(f"engine.cache.storage.{module}"), kind)
        except ImportError as error:
            raise StorageError(f"{name} cannot be loaded: {error}") from error
        storage = made(config, self._site)
        assert isinstance(storage, Storage), "a client is a Storage"
        return storage

    def answer(self, ask: wire.Ask, part: memoryview) -> wire.Answer:
        try:
            return self._answer(ask, part)
        except TimeoutError as error:
            return wire.Answer(error=str(error), is_last=True)
        except StorageError as error:
            return wire.Answer(error=str(error), is_storage_error=True)
        except Exception as error:  # noqa: BLE001  # the parent raises it again
            return wire.Answer(error=f"{type(error).__name__}: {error}"[:500])

    def _answer(self, ask: wire.Ask, part: memoryview) -> wire.Answer:
        if ask.call == "open":
            self._storage = self._load()
        storage, deadline = self._storage, time.monotonic() + ask.time_left_s
        assert storage is not None, "a call before open"
        size = self._record_bytes
        pages = [part[i * size : (i + 1) * size] for i in range(len(ask.keys))]
        match ask.call:
            case "open":
                storage.open(deadline)
            case "exists":
                return wire.Answer(found=storage.batch_exists(ask.keys))
            case "get":
                return wire.Answer(statuses=storage.batch_get(ask.keys, pages))
            case "put":
                return wire.Answer(statuses=storage.batch_put(ask.keys, pages))
            case "delete":
                storage.batch_delete(ask.keys)
            case "clear":
                return wire.Answer(count=storage.clear(deadline))
            case "close":
                storage.close(deadline)
        return wire.Answer()


if __name__ == "__main__":
    main([int(number) for number in sys.argv[1:]])

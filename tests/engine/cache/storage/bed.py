"""A test bed: how it is set up, looked into, damaged and killed, for the common tests.

Every bed has an identity of its own, so a server may be shared by tests.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from engine.cache.storage.base import Site, Storage
from engine.protocol import HostLayout
from tests.engine.cache.storage.pages import Pages, soon
from tests.fakes.stack import free_port
from tests.fakes.waiting import wait_until

Damage = Literal["cut", "flip"]


class Bed(ABC):
    """What the conformance tests need to know and do."""

    needs = ""  # the optional package, without which its tests are skipped
    clears = True  # all of an identity
    stands_in = False  # the vendor's package is one of tests/fakes/vendors
    is_slow = False  # its common tests are slow ones; it has some of its own that are not
    has_server = False  # one that `kill` and `freeze` stop
    keeps_after_close = True
    can_be_damaged = True
    slots_when_full = 8  # pages that fit in `tiny()`, at most; 0: it cannot be made small
    io_timeout = 20.0  # in which all that is answered is answered
    short_io_timeout = 0.5  # for a server that does not answer
    quick_cycles = 50  # of open and close, for every run
    spare_fds = 0  # that a client keeps for ever, once
    spare_threads = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.identity = secrets.token_bytes(16)
        self.pages = Pages()

    def site(self, dp_rank: int = 0, identity: bytes = b"") -> Site:
        return Site(
            model="SmolLM2-135M",
            identity=identity or self.identity,
            dp_rank=dp_rank,
            record_bytes=self.pages.record_bytes,
            layout=HostLayout.PAGE_FIRST,
            roots=(self.folder,),
            endpoints=("127.0.0.1:*", "localhost:*"),
            pool=self.pages.pool,
        )

    @abstractmethod
    def storage(self, dp_rank: int = 0, identity: bytes = b"") -> Storage:
        """Not open yet."""

    @contextmanager
    def opened(self, storage: Storage | None = None) -> Iterator[Storage]:
        """An open one, closed at the end."""
        made = storage if storage is not None else self.storage()
        made.open(soon())
        try:
            yield made
        finally:
            self.close(made)

    def close(self, storage: Storage) -> None:
        storage.close(soon(60))

    def tiny(self) -> Storage:
        """One that takes few pages."""
        raise NotImplementedError

    def damage(self, key: bytes, how: Damage) -> None:
        """Cut what is kept under a key, or change a byte of it."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the server, where there is one."""
        assert not self.has_server, "a server that nobody starts"

    def kill(self) -> None:
        raise NotImplementedError

    def freeze(self) -> None:
        raise NotImplementedError

    def thaw(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the server, where there is one."""
        assert not self.has_server, "a server that nobody stops"


class ServedBed(Bed):
    """One whose server is a child process."""

    has_server = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = self.launch()
        wait_until(self.is_up)

    @abstractmethod
    def launch(self) -> subprocess.Popen[bytes]:
        """Its server."""

    def is_up(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        self.stop()

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def damage_file(path: Path, at: int, how: Damage) -> None:
    if how == "cut":
        os.truncate(path, at)
        return
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0xFF]))

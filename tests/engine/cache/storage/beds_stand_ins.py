"""Test beds of backends that have a stand-in only: 3FS and EIC."""

from __future__ import annotations

import os
from pathlib import Path

from engine.cache.storage import records
from engine.cache.storage.base import Storage
from engine.cache.storage.registry import make
from engine.protocol import StorageBackend
from engine.protocol.storage_configs import (
    EicConfig,
    Hf3fsConfig,
)
from tests.engine.cache.storage.bed import Bed, Damage, damage_file

VENDORS = Path(__file__).parents[3] / "fakes" / "vendors"


class Hf3fsBed(Bed):
    """On a stand-in for the vendor's package: there is no cluster."""

    stands_in = True
    is_slow = True
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

    def damage(self, key: bytes, how: Damage) -> None:
        (path,) = self.folder.rglob("*.bin")
        content = path.read_bytes()
        for at in range(0, len(content), self.pages.record_bytes):
            found = records.header_key(content[at : at + records.HEADER_BYTES])
            if found is not None and found[0] == key:
                damage_file(path, at + self.pages.record_bytes // 2, how)
                return
        raise AssertionError("the page is not there")


class EicBed(Bed):
    """On a stand-in for the vendor's package, which is not public."""

    stands_in = True
    is_slow = True
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

    def damage(self, key: bytes, how: Damage) -> None:
        (path,) = self.kept.glob(f"*:{key.hex()}")
        damage_file(path, self.pages.record_bytes // 2, how)

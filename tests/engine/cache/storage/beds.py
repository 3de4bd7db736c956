"""All test beds, by name."""

from __future__ import annotations

from tests.engine.cache.storage.bed import Bed, Damage
from tests.engine.cache.storage.beds_native import (
    CLOSING,
    AibrixBed,
    AibrixFilesBed,
    MooncakeBed,
    NixlFilesBed,
    NixlObjectsBed,
)
from tests.engine.cache.storage.beds_own import FileBed, ValkeyBed
from tests.engine.cache.storage.beds_stand_ins import VENDORS, EicBed, Hf3fsBed

__all__ = [
    "BEDS",
    "CLOSING",
    "VENDORS",
    "AibrixBed",
    "AibrixFilesBed",
    "Bed",
    "Damage",
    "EicBed",
    "FileBed",
    "Hf3fsBed",
    "MooncakeBed",
    "NixlFilesBed",
    "NixlObjectsBed",
    "ValkeyBed",
]

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

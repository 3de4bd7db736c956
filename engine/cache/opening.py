"""Opens and probes a backend for one rank, on a thread that may wait. Nothing is attached yet."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import msgspec

from engine.cache.attached import Opened
from engine.cache.storage.base import Site, Status, Storage, StorageError
from engine.cache.storage.guard import Guard
from engine.cache.storage.records import HEADER_BYTES, fault_of, seal
from engine.cache.storage.registry import make
from engine.log import get_logger
from engine.memory.host_pool import make_records
from engine.protocol import StorageConfig, StorageView, secrets_of

log = get_logger()

_CLOSE_S = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What one rank was told: the view that all share, and its own settings, secrets and all."""

    view: StorageView
    config: StorageConfig
    config_hash: str


def open_storage(settings: Settings, site: Site, payload_bytes: int, deadline: float) -> Opened:
    """A backend that has kept a page, given it back and deleted it. Raises StorageError, with
    nothing left open."""
    values = msgspec.structs.asdict(settings.config)
    secrets = [values[name] for name in secrets_of(settings.view.backend)]
    storage = make(settings.view.backend, settings.config, site)
    guard = Guard(storage, payload_bytes=payload_bytes, secrets=secrets)
    try:
        try:
            storage.open(deadline)
            _probe(storage, site, payload_bytes)
        except Exception as error:  # noqa: BLE001 - a backend may raise anything
            raise StorageError(guard.masked(_sentence(error))) from None
    except StorageError:
        _close(storage)
        raise
    return Opened(settings.view, settings.config, settings.config_hash, guard, site.identity)


def _sentence(error: Exception) -> str:
    if isinstance(error, StorageError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _close(storage: Storage) -> None:
    try:
        storage.close(time.monotonic() + _CLOSE_S)
    except Exception as error:  # noqa: BLE001 - it could not be opened; how it ends is the lesser news
        log.warning(
            "closing a backend that could not be opened failed", reason=type(error).__name__
        )


def _probe(storage: Storage, site: Site, payload_bytes: int) -> None:
    """Write, read, compare and delete one page under a key that no page can have."""
    key = site.identity + os.urandom(32)
    out, back = make_records(2, site.record_bytes)
    out[HEADER_BYTES : HEADER_BYTES + payload_bytes] = os.urandom(payload_bytes)
    seal(out, key, payload_bytes)
    status = storage.batch_put([key], [out])
    if status != [Status.OK]:
        why = "the store is full" if status == [Status.FULL] else "it was not kept"
        raise StorageError(f"the probe page could not be written: {why}")
    status = storage.batch_get([key], [back])
    if status != [Status.OK] or fault_of(back, key, payload_bytes) is not None or back != out:
        raise StorageError("the probe page was not read back as it was written")
    storage.batch_delete([key])

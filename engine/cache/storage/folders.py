"""Folders that a backend makes for itself beneath an allowed one."""

from __future__ import annotations

import shutil
from pathlib import Path

from engine.cache.storage.base import Site, StorageError


def of_model(site: Site, parent: Path) -> Path:
    """The folder of one identity in a folder that may be shared."""
    return below(parent, f"{site.model}-{site.identity.hex()[:8]}")


def below(parent: Path, name: str) -> Path:
    """A folder in a folder, made if it is not there, and no link. Raises StorageError."""
    folder = parent / name
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StorageError(f"the folder {name} cannot be made: {error.strerror}") from error
    if folder.is_symlink():
        raise StorageError(f"the folder {name} is a link")
    return folder


def has_room(folder: Path, wanted_bytes: int, min_free_bytes: int) -> bool:
    """True if the disk would keep `min_free_bytes`. Raises OSError."""
    return shutil.disk_usage(folder).free - wanted_bytes >= min_free_bytes

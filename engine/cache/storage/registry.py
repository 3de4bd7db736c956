"""Which module is which backend. A name of a config never chooses what is imported.

A backend's module is imported when it is attached: its package is optional.
"""

from __future__ import annotations

import importlib
import importlib.util

from engine.cache.storage.base import Site, Storage, StorageError
from engine.protocol import HostLayout, StorageBackend, StorageConfig

# Module, class, the package it needs, and how to get that.
_BACKENDS: dict[StorageBackend, tuple[str, str, str, str]] = {
    StorageBackend.FILE: ("file", "FileStorage", "", ""),
    StorageBackend.VALKEY: ("valkey", "ValkeyStorage", "", ""),
    StorageBackend.MOONCAKE: ("mooncake", "MooncakeStorage", "mooncake", "quiesce[mooncake]"),
    StorageBackend.NIXL: ("nixl", "NixlStorage", "nixl_cu12", "quiesce[nixl]"),
    StorageBackend.AIBRIX: (
        "aibrix",
        "AibrixStorage",
        "aibrix_kvcache",
        "quiesce[aibrix], then aibrix-kvcache==0.8.0 with --no-deps",
    ),
    StorageBackend.HF3FS: ("hf3fs", "Hf3fsStorage", "hf3fs_fuse", "3FS's hf3fs_py_usrbio"),
    StorageBackend.EIC: ("eic", "EicStorage", "eic", "the vendor's eic package"),
}


def problem_of(backend: StorageBackend) -> str:
    """Why this backend cannot be used in this installation, without trying; nothing if it can."""
    _, _, package, source = _BACKENDS[backend]
    if package and importlib.util.find_spec(package) is None:
        return f"the Python package {package} is not installed; install {source}"
    return ""


def layout_problem(backend: StorageBackend, layout: HostLayout) -> str:
    """Why this backend does not work on that host layout; nothing if it does, or cannot be told."""
    if problem_of(backend):
        return ""
    kind = _kind(backend)
    if layout in kind.layouts:
        return ""
    allowed = ", ".join(sorted(kind.layouts))
    reason = f": {kind.layout_reason}" if kind.layout_reason else ""
    return (
        f"{backend} does not work on host layout {HostLayout(layout)}{reason}; "
        f"start the engine with --hicache-mem-layout set to one of {allowed}"
    )


def _kind(backend: StorageBackend) -> type[Storage]:
    module, name, _, _ = _BACKENDS[backend]
    try:
        kind: type[Storage] = getattr(
            importlib.import_module(f"engine.cache.storage.{module}"), name
        )
    except ImportError as error:  # a package that is there and does not load
        raise StorageError(f"{backend} cannot be loaded: {error}") from error
    return kind


def make(backend: StorageBackend, config: StorageConfig, site: Site) -> Storage:
    """A backend, not open yet. Raises StorageError: a missing package, a layout it refuses."""
    problem = problem_of(backend) or layout_problem(backend, site.layout)
    if problem:
        raise StorageError(problem)
    return _kind(backend)(config, site)  # type: ignore[call-arg]

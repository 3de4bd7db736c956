"""What an attach may touch: folders under the engine's storage roots, and listed endpoints."""

from __future__ import annotations

from pathlib import Path

from engine.cache.storage.base import Site, StorageError


def folder(site: Site, path: str, what: str) -> Path:
    """The folder that `path` names, beneath a root; the first root for "". It need not exist.

    Raises StorageError for one that lies elsewhere, by `..` or by a link.
    """
    if not site.roots:
        raise StorageError("this engine has no storage root; start it with --storage-root")
    if not path:
        return site.roots[0]
    named = Path(path)
    if "\0" in path or not named.is_absolute() or ".." in named.parts:
        raise StorageError(f"{what} must be an absolute path without '..'")
    try:
        real = named.resolve()
    except (OSError, RuntimeError) as error:
        raise StorageError(f"{what} cannot be resolved: {error}") from error
    for root in site.roots:
        if real.is_relative_to(root.resolve()):
            return real
    raise StorageError(f"{what} is not under an allowed storage root")


def made_folder(site: Site, path: str, what: str) -> Path:
    """That folder, made if it is not there; its root must be. Raises StorageError."""
    real = folder(site, path, what)
    if not any(root.is_dir() and real.is_relative_to(root.resolve()) for root in site.roots):
        raise StorageError(f"the storage root of {what} is no folder, or does not exist")
    try:
        real.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{what} cannot be made: {error.strerror}") from error
    return real


def endpoint(site: Site, host: str, port: int, what: str) -> None:
    """Raises StorageError for an endpoint that the engine may not connect to."""
    for pattern in site.endpoints:
        allowed_host, _, allowed_port = pattern.rpartition(":")
        if pattern == "*" or (
            allowed_host.strip("[]") == host.strip("[]") and allowed_port in ("*", str(port))
        ):
            return
    raise StorageError(
        f"{what} names {host}:{port}, which is not an allowed storage endpoint; "
        "start the engine with --storage-endpoint"
    )

"""What an attach may touch: folders under the engine's storage roots, and listed endpoints."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from engine.cache.storage.base import Site, StorageError
from engine.protocol import StorageBackend, StorageConfig, fields_of

DEFAULT_FOLDER = "kv-storage"
_TCP_SCHEMES = ("", "http", "https")
NO_ENDPOINT = "P2PHANDSHAKE"  # what Mooncake calls having no metadata server


def check(
    config: StorageConfig,
    backend: StorageBackend,
    roots: Sequence[Path],
    endpoints: Sequence[str],
    own: Sequence[Path] = (),
) -> None:
    """Every path and endpoint of these settings is allowed, and no path leads into folders that
    are the engine's `own` for other things. Raises StorageError."""
    for field in fields_of(backend):
        value = getattr(config, field.name)
        if field.kind == "path":
            real = beneath(roots, value, field.name)
            if any(real.is_relative_to(each.resolve()) for each in own):
                raise StorageError(f"{field.name} is a folder of the engine's own")
        elif field.kind == "endpoint" and value and value != NO_ENDPOINT:
            _check_endpoint(roots, endpoints, value, field.name)


def _check_endpoint(roots: Sequence[Path], endpoints: Sequence[str], value: str, what: str) -> None:
    url = urlsplit(value if "://" in value else f"//{value}")
    if url.scheme == "unix":
        beneath(roots, url.path, what)
        return
    host, port = address(value, what)
    reachable(endpoints, host, port, what)


def address(value: str, what: str) -> tuple[str, int]:
    """Host and port of "host:port" or a URL. Raises StorageError, quoting nothing of it."""
    url = urlsplit(value if "://" in value else f"//{value}")
    if url.username is not None or url.password is not None:
        raise StorageError(f"{what} must not hold a user or a password")
    try:
        host, port = url.hostname, url.port
    except ValueError as error:
        raise StorageError(f"{what} names no port") from error
    if not host:
        raise StorageError(f"{what} names no host")
    defaults = {"http": 80, "https": 443, "valkey": 6379, "valkeys": 6379}
    defaults |= {"redis": 6379, "rediss": 6379}
    return host, port or defaults.get(url.scheme, 0)


def find_servers(
    site: Site, config: StorageConfig, backend: StorageBackend, deadline: float
) -> None:
    """Something answers wherever these settings point, as far as they can be read, or StorageError:
    before a client that would wait for minutes is even started."""
    for field in fields_of(backend):
        value = getattr(config, field.name)
        if field.kind != "endpoint" or not value or value == NO_ENDPOINT:
            continue
        try:
            host, port = address(value, field.name)
        except StorageError:
            continue  # the client says what it wanted
        scheme = value.partition("://")[0] if "://" in value else ""
        if not port or scheme not in _TCP_SCHEMES:
            continue
        endpoint(site, host, port, field.name)
        left = max(0.001, min(deadline - time.monotonic(), config.io_timeout))
        try:
            socket.create_connection((host, port), left).close()
        except OSError as error:
            raise StorageError(
                f"nothing answers at {host}:{port} ({field.name}): {error.strerror or error}"
            ) from error


def folder(site: Site, path: str, what: str) -> Path:
    """The folder that `path` names, beneath a root of the engine's. Raises StorageError."""
    return beneath(site.roots, path, what)


def beneath(roots: Sequence[Path], path: str, what: str) -> Path:
    """The folder that `path` names, beneath a root; one in the first root for "". It need not
    exist.

    Raises StorageError for one that lies elsewhere, by `..` or by a link.
    """
    if not roots:
        raise StorageError("this engine has no storage root; start it with --storage-root")
    named = Path(path) if path else roots[0].absolute() / DEFAULT_FOLDER
    if "\0" in path or not named.is_absolute() or ".." in named.parts:
        raise StorageError(f"{what} must be an absolute path without '..'")
    try:
        real = named.resolve()
    except (OSError, RuntimeError) as error:
        raise StorageError(f"{what} cannot be resolved: {error}") from error
    for root in roots:
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
    reachable(site.endpoints, host, port, what)


def reachable(endpoints: Sequence[str], host: str, port: int, what: str) -> None:
    """The same, of a list of "host:port", "host:*" and "*"."""
    for pattern in endpoints:
        allowed_host, _, allowed_port = pattern.rpartition(":")
        if pattern == "*" or (
            allowed_host.strip("[]") == host.strip("[]") and allowed_port in ("*", str(port))
        ):
            return
    raise StorageError(
        f"{what} names {host}:{port}, which is not an allowed storage endpoint; "
        "start the engine with --storage-endpoint"
    )

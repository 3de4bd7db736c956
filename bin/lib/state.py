"""The state folder: private, versioned, held by one supervisor at a time. Standard library only."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
from pathlib import Path

from options import Options, fail

VERSION = 1
_MAX_RUN_DIR = 80  # a unix socket path is limited to about 100 bytes


def claim_ports(options: Options) -> None:
    """Say so at once when a port is taken."""
    wanted = [("--port", options.port)]
    wanted += [("--engine-port", options.engine_port)] if options.has_engine else []
    for flag, port in wanted:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                fail(f"port {port} is in use ({error.strerror}); choose another with {flag}", 1)


def open_folder(folder: Path) -> None:
    """Make the folder if need be and check its version."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        for name in ("logs", "models", "engine"):
            (folder / name).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        fail(f"cannot use the state folder {folder}: {error.strerror}", 1)
    path = folder / "state.json"
    found = _version(path)
    if found > VERSION:
        fail(f"{folder} is of version {found}, newer than this Quiesce ({VERSION}); upgrade it", 1)
    if found < VERSION:
        temp = path.with_suffix(".new")
        temp.write_text(json.dumps({"version": VERSION}) + "\n")
        temp.replace(path)


def _version(path: Path) -> int:
    if not path.exists():
        return 0
    try:
        version = json.loads(path.read_text())["version"]
    except (ValueError, LookupError, TypeError):
        fail(f"{path} is damaged; it should hold a version", 1)
    if not isinstance(version, int):
        fail(f"{path} is damaged; its version is {version!r}", 1)
    return version


def hold(folder: Path) -> int:
    """Keep other supervisors out while this process lives; returns the lock's descriptor."""
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        fail(f"another bin/run uses {folder}; choose another with --state-dir", 1)
    return fd


def run_dir(folder: Path) -> Path:
    """Where sockets go: the state folder, or a short private one where its path is too long."""
    inside = folder / "run"
    if len(str(inside)) <= _MAX_RUN_DIR:
        inside.mkdir(mode=0o700, exist_ok=True)
        return inside
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("TMPDIR") or "/tmp")  # noqa: S108
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    short = base / f"quiesce-{os.getuid()}-{digest}"
    short.mkdir(mode=0o700, exist_ok=True)
    if short.stat().st_uid != os.getuid() or short.is_symlink():
        fail(f"{short} belongs to somebody else; set TMPDIR", 1)
    short.chmod(0o700)
    return short

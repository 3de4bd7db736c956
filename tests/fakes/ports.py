"""Ports for processes of tests."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path

# Below what kernels give to outgoing connections: one of those may have a port by the time that the
# process it was meant for binds it.
PORTS = range(12_000, 29_000)
_TRIES = 200

_given: set[int] = set()
_random = random.SystemRandom()  # the tests' own seed may be the same in two runs


def free_port() -> int:
    """One that nobody has on this host just now, and that no other run of tests is given while this
    process lives. Raises OSError when none is found."""
    for _ in range(_TRIES):
        port = _random.choice(PORTS)
        if port not in _given and _is_ours(port) and _is_free(port):
            _given.add(port)
            return port
    raise OSError(f"none of {_TRIES} ports that were tried is free")


def _is_ours(port: int) -> bool:
    """Whether this process has, or now got, the lock of this port among all runs of tests."""
    try:
        fcntl.lockf(_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):
        return False
    return True


@cache
def _locks() -> int:
    """A file of which each byte stands for a port."""
    path = Path(tempfile.gettempdir()) / f"quiesce-test-ports-{os.getuid()}"
    return os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

"""Ports for processes of tests."""

from __future__ import annotations

import socket


def free_port() -> int:
    """One that nobody has on this host just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

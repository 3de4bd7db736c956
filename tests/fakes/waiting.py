"""Waiting for what has to come. Nothing in a test may fail since a machine is slow."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 240.0  # "never", on a machine however busy


def wait_until(check: Callable[[], object], *, every_s: float = 0.03) -> None:
    """Wait until `check` is true. Fails only when that seems never to come."""
    gives_up_at = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < gives_up_at, f"not within {PATIENCE_S} s"
        time.sleep(every_s)

"""Saving what an engine said, also when the database is locked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.db import OperationalError

from console.clock import sleep_s

T = TypeVar("T")


def saved(save: Callable[[], T], tries: int = 5) -> T:
    """Do `save`, and again when the database was locked: the engine is not asked twice for that."""
    for left in range(tries - 1, -1, -1):
        try:
            return save()
        except OperationalError:
            if not left:
                raise
            sleep_s(0.2)
    raise AssertionError("unreachable")

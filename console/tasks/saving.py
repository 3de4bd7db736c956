"""Saving what an engine said, also when the database is locked."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from django.db import OperationalError

T = TypeVar("T")


def saved(save: Callable[[], T], tries: int = 5) -> T:
    """Do `save`, and again when the database was locked: the engine is not asked twice for that."""
    for left in range(tries - 1, -1, -1):
        try:
            return save()
        except OperationalError:
            if not left:
                raise
            time.sleep(0.2)
    raise AssertionError("unreachable")

"""HTML of what will not change any more, made once."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """At most `most` values by their key; the oldest leave. Several threads may share it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[K, V] = {}
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value that was put, or None."""
        return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        """Keep it."""
        with self._lock:
            while len(self._values) >= self._most:
                del self._values[next(iter(self._values))]
            self._values[key] = value

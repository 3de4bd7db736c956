"""Between a rank and its backend: records are sealed and checked, faults become statuses.

Nothing a backend raises leaves this module. Calls come from the worker's threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.cache.storage.base import Status, Storage
from engine.cache.storage.records import Fault, fault_of, seal
from engine.protocol import Breaker

OPENS_AFTER = 5  # errors within WINDOW_S
WINDOW_S = 10.0
FIRST_RETRY_S = 1.0
MAX_RETRY_S = 10.0
CLOSES_AFTER = 3  # pages in a row that went well
MASK = "***"


class CircuitBreaker:
    """Whether a store is asked at all; from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._errors: list[float] = []
        self._good = 0
        self._retry_s = FIRST_RETRY_S
        self._retry_at = 0.0
        self._is_open = False
        self.is_stalled = False

    @property
    def state(self) -> Breaker:
        """As it is shown."""
        with self._lock:
            if self.is_stalled:
                return Breaker.STALLED
            if not self._is_open:
                return Breaker.CLOSED
            return Breaker.OPEN if self._clock() < self._retry_at else Breaker.HALF_OPEN

    @property
    def retry_in_s(self) -> float | None:
        """Until an open breaker lets a page through."""
        with self._lock:
            if not self._is_open or self.is_stalled:
                return None
            return max(0.0, self._retry_at - self._clock())

    @property
    def max_pages(self) -> int | None:
        """Pages that one call may ask for now; None for any number."""
        return {Breaker.CLOSED: None, Breaker.HALF_OPEN: 1}.get(self.state, 0)

    def succeeded(self) -> None:
        """A call came back well."""
        with self._lock:
            if self._is_open and self._clock() >= self._retry_at:
                self._good += 1
                if self._good >= CLOSES_AFTER:
                    self._is_open, self._errors, self._retry_s = False, [], FIRST_RETRY_S

    def failed(self) -> None:
        """A call failed."""
        with self._lock:
            now = self._clock()
            self._good = 0
            self._errors = [at for at in self._errors if now - at < WINDOW_S] + [now]
            if self._is_open:
                if now >= self._retry_at:  # tried, and no better
                    self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)
                    self._retry_at = now + self._retry_s
            elif len(self._errors) >= OPENS_AFTER:
                self._is_open, self._retry_at = True, now + self._retry_s


@dataclass(slots=True)
class Counters:
    """What came of all calls; only grows. Written by the worker's threads, each its own fields."""

    hit_pages: int = 0
    miss_pages: int = 0
    corrupt_pages: int = 0
    read_bytes: int = 0
    written_pages: int = 0
    written_bytes: int = 0
    dropped_pages: int = 0
    read_errors: int = 0
    write_errors: int = 0

    @property
    def errors(self) -> int:
        """Calls that failed, reads and writes."""
        return self.read_errors + self.write_errors


class Guard:
    """One backend behind its breaker. `secrets` never appear in `last_error`."""

    def __init__(
        self,
        storage: Storage,
        *,
        payload_bytes: int,
        secrets: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.storage = storage
        self.breaker = CircuitBreaker(clock)
        self.counters = Counters()
        self.last_error = ""
        self.last_error_at: float | None = None
        self._payload_bytes = payload_bytes
        self._secrets = [secret for secret in secrets if secret]
        self._clock = clock

    def follows(self, prefix_keys: Sequence[bytes]) -> None:
        """Tell the backend what comes before the pages of the next call."""
        try:
            self.storage.follows(prefix_keys)
        except Exception as error:  # noqa: BLE001 - a backend may raise anything: counted
            self._failed(error, is_read=True)

    def find(self, keys: Sequence[bytes]) -> int:
        """How many of `keys` are there, from the first on."""
        try:
            there = self.storage.batch_exists(keys)
            if len(there) != len(keys):
                raise RuntimeError(f"{len(there)} answers for {len(keys)} keys")
        except Exception as error:  # noqa: BLE001 - a backend may raise anything: a miss, counted
            self._failed(error, is_read=True)
            return 0
        self.breaker.succeeded()
        return next((i for i, found in enumerate(there) if not found), len(there))

    def get(self, keys: Sequence[bytes], buffers: Sequence[memoryview]) -> int:
        """Read pages; returns how many, from the first on, are whole and what was asked for."""
        try:
            statuses = self.storage.batch_get(keys, buffers)
            if len(statuses) != len(keys):
                raise RuntimeError(f"{len(statuses)} answers for {len(keys)} keys")
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error, is_read=True)
            self.counters.miss_pages += len(keys)
            return 0
        good = 0
        for key, buffer, status in zip(keys, buffers, statuses, strict=True):
            if status is not Status.OK:
                break
            fault = fault_of(buffer, key, self._payload_bytes)
            if fault is not None:
                self._drop_corrupt(key, fault)
                break
            good += 1
        if any(status is Status.ERROR for status in statuses):
            self._failed("a page could not be read", is_read=True)
        else:
            self.breaker.succeeded()
        self.counters.hit_pages += good
        self.counters.miss_pages += len(keys) - good
        self.counters.read_bytes += sum(len(buffer) for buffer in buffers[:good])
        return good

    def put(self, keys: Sequence[bytes], records: Sequence[memoryview]) -> list[bool]:
        """Write pages; says of each whether it is kept."""
        for key, record in zip(keys, records, strict=True):
            seal(record, key, self._payload_bytes)
        try:
            statuses = self.storage.batch_put(keys, records)
            if len(statuses) != len(keys):
                raise RuntimeError(f"{len(statuses)} answers for {len(keys)} keys")
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error, is_read=False)
            statuses = [Status.ERROR] * len(keys)
        else:
            if Status.ERROR in statuses:
                self._failed("a page could not be written", is_read=False)
            elif Status.FULL in statuses:
                self._note("the store is full")
            else:
                self.breaker.succeeded()
        kept = [status is Status.OK for status in statuses]
        self.counters.written_pages += sum(kept)
        self.counters.written_bytes += sum(
            len(record) for record, is_kept in zip(records, kept, strict=True) if is_kept
        )
        self.counters.dropped_pages += len(kept) - sum(kept)
        return kept

    def close(self, deadline: float) -> str:
        """Close the backend by `deadline` (time.monotonic); returns why that failed, or nothing."""
        try:
            self.storage.close(deadline)
        except Exception as error:  # noqa: BLE001 - a backend may raise anything
            return self.masked(f"closing failed: {error}")
        return ""

    def stalled(self, is_stalled: bool, after_s: float) -> None:
        """A call does not come back; or it has, after all."""
        if is_stalled and not self.breaker.is_stalled:
            self._note(f"a call has not come back in {after_s:.1f} s")
        self.breaker.is_stalled = is_stalled

    def dropped(self, num_pages: int) -> None:
        """Pages that were not even tried."""
        self.counters.dropped_pages += num_pages

    def _drop_corrupt(self, key: bytes, fault: Fault) -> None:
        """It is a miss, and must not stand in the way of a good copy."""
        self.counters.corrupt_pages += 1
        self._note(f"a page read back is not what was written ({fault})")
        try:
            self.storage.batch_delete([key])
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error, is_read=True)

    def _failed(self, error: Exception | str, *, is_read: bool) -> None:
        if is_read:
            self.counters.read_errors += 1
        else:
            self.counters.write_errors += 1
        self.breaker.failed()
        said = getattr(self.storage, "last_error", "") if isinstance(error, str) else ""
        self._note(said or str(error) or type(error).__name__)

    def _note(self, text: str) -> None:
        self.last_error = self.masked(text)[:300]
        self.last_error_at = self._clock()

    def masked(self, text: str) -> str:
        """`text` without any secret of this backend."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text

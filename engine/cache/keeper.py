"""A rank's storage backend over operations: what is attached, opened beside it, kept for an undo.

One thread calls it, the scheduler's; opening and closing run in the background.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.cache.attached import Opened
from engine.cache.opening import Settings, open_storage
from engine.cache.storage.base import Site, StorageError
from engine.cache.tiers import Tiers
from engine.log import get_logger
from engine.protocol import Breaker, CachePolicies, RankStorage, StorageView

log = get_logger()

OPEN_S = 15.0  # for connecting and for one page there and back
CLOSE_S = 10.0
FIRST_RETRY_S = 1.0
MAX_RETRY_S = 30.0
CLEAR_S = 4.0  # less than a commit may take
Read = Callable[[StorageView], Settings]  # raises StorageError
Opens = Callable[[Settings, Site, int, float], Opened]
Told = Callable[[str], None]  # "" or why not


NOT_ENABLED = "Hierarchical cache is not enabled."


def _no_site() -> Site:
    raise StorageError(NOT_ENABLED)


def _no_settings(view: StorageView) -> Settings:
    raise StorageError(NOT_ENABLED)


def _on_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="storage keeper", daemon=True).start()


class StorageKeeper:
    """`read` gives this rank's settings for what all ranks share; `ended` is how a thread tells
    the scheduler's thread: it runs what it is given there, soon.

    A backend that the engine is to have and that cannot be opened now is `missing`: the rank serves
    without it, says so, and tries again.
    """

    def __init__(
        self,
        tiers: Tiers | None,
        site: Callable[[], Site] = _no_site,
        read: Read = _no_settings,
        ended: Callable[[Callable[[], None]], None] = lambda told: told(),
        clock: Callable[[], float] = time.monotonic,
        opens: Opens = open_storage,
        beside: Callable[[Callable[[], None]], None] = _on_a_thread,
    ) -> None:
        """`opens` opens a backend, `beside` runs what may take its time off this thread."""
        self._tiers = tiers
        self._site = site
        self._read = read
        self._ended = ended
        self._clock = clock
        self._opens = opens
        self._beside = beside
        self._staged: Opened | None = None
        self._kept: Opened | None = None  # that was attached before a commit
        self._missing: _Missing | None = None
        self._kept_missing: _Missing | None = None
        self._order = 0  # of the newest staging; the end of an older one is for nobody

    @property
    def view(self) -> StorageView | None:
        """What this rank has attached, or would have if it could be opened."""
        if self._missing is not None:
            return self._missing.view
        return self._attached.view if self._attached is not None else None

    @property
    def _attached(self) -> Opened | None:
        return self._tiers.attached if self._tiers is not None else None

    @property
    def is_missing(self) -> bool:
        """This rank serves without the backend that it is to have."""
        return self._missing is not None

    @property
    def is_possible(self) -> bool:
        """There is a host tier for a backend to stand below."""
        return self._tiers is not None

    def report(self) -> RankStorage | None:
        """What this rank says of its backend."""
        missing = self._missing
        if missing is not None:
            return RankStorage(
                backend=missing.view.backend,
                config_id=missing.view.config_id,
                config_hash=missing.config_hash,
                is_open=False,
                breaker=Breaker.OPEN,
                retry_in_s=max(0.0, missing.retry_at - self._clock()),
                errors=missing.tries,
                last_error=missing.error,
                last_error_age_s=max(0.0, self._clock() - missing.failed_at),
            )
        return self._attached.report(self._clock()) if self._attached is not None else None

    # ---- an operation ------------------------------------------------------------------------

    def stage(self, view: StorageView, told: Told) -> None:
        """Open and probe a backend beside the one in use; ends with `told`, unless `unstage` comes
        first."""
        self.unstage()
        tiers = self._tiers
        if tiers is None:
            told(NOT_ENABLED)
            return
        try:
            settings, site = self._read(view), self._site()
        except StorageError as error:
            told(str(error))
            return
        self._order += 1
        order, payload_bytes = self._order, tiers.host.pool.shape.payload_bytes

        def work() -> None:
            opened, error = None, ""
            try:
                opened = self._opens(settings, site, payload_bytes, time.monotonic() + OPEN_S)
            except StorageError as fault:
                error = str(fault)
            except Exception as fault:  # noqa: BLE001 - the operation must hear of any end
                log.error("opening a storage backend failed", reason=type(fault).__name__)
                error = f"{view.backend} could not be opened: {type(fault).__name__}"
            self._ended(lambda: self._opened(order, opened, error, told))

        self._beside(work)

    def _opened(self, order: int, opened: Opened | None, error: str, told: Told) -> None:
        if order != self._order:  # nobody waits for it any more
            self._close(opened)
            return
        self._staged = opened
        told(error)

    def unstage(self) -> None:
        """Drop what was opened and not attached, and what was kept for an undo."""
        self._order += 1
        if self._missing is not None:
            self._missing.is_trying = False  # what was being opened is for nobody now
        staged, self._staged = self._staged, None
        kept, self._kept = self._kept, None
        self._close(staged)
        self._close(kept)

    def _close(self, opened: Opened | None) -> None:
        """Beside: a call that is under way is waited for, in bounds."""
        if opened is not None:
            self._beside(lambda: _closed(opened))

    def commit(self, view: StorageView | None) -> None:
        """Use what was staged, or nothing; what was in use is kept for an undo. Raises StorageError
        with nothing changed."""
        tiers = self._tiers
        if tiers is None:
            if view is not None:
                raise StorageError(NOT_ENABLED)
            return
        staged = self._staged
        if view is not None and (staged is None or staged.view != view):
            raise StorageError("the backend that was opened is gone")
        self._kept, self._kept_missing = tiers.detach(), self._missing
        self._missing = None
        if view is not None and staged is not None:
            self._staged = None
            tiers.attach(staged)

    def undo(self) -> None:
        """Use what was in use before the commit."""
        tiers = self._tiers
        assert tiers is not None
        self._close(tiers.detach())
        kept, self._kept = self._kept, None
        self._missing, self._kept_missing = self._kept_missing, None
        if kept is not None:
            tiers.attach(kept)

    def why_not_clear(self) -> str:
        """Nothing, when `clear` can be tried."""
        if self.view is None:
            return "no storage backend is attached"
        report = self.report()
        if report is not None and report.breaker is not Breaker.CLOSED:
            return f"the backend does not answer: {report.last_error}"
        return ""

    def clear(self) -> int:
        """Delete what this engine keeps there; returns how many pages. Raises StorageError."""
        if self._tiers is None or self._attached is None:
            raise StorageError("no storage backend is attached")
        guard = self._attached.guard
        try:
            count = guard.storage.clear(time.monotonic() + CLEAR_S)
        except Exception as error:  # noqa: BLE001 - a backend may raise anything
            raise StorageError(guard.masked(str(error)) or type(error).__name__) from None
        self._tiers.forget_stored()
        return count

    def set_policies(self, policies: CachePolicies) -> None:
        """When pages are copied, and how long requests wait."""
        if self._tiers is not None:
            self._tiers.set_policies(policies)

    # ---- converge ----------------------------------------------------------------------------

    def converge(self, desired: StorageView | None, told: Callable[[], None]) -> None:
        """Take what the engine is to have attached, or go without it as long as it does not open;
        no operation is under way. Ends with `told`."""
        if self._tiers is None or self.view == desired:
            told()
            return
        if desired is None:
            self.commit(None)
            self.unstage()
            told()
            return
        self._open_desired(desired, tries=1, told=told)

    def _open_desired(self, desired: StorageView, *, tries: int, told: Callable[[], None]) -> None:
        def opened(error: str) -> None:
            if error:
                self._lacks(desired, error, tries)
            else:
                self.commit(desired)
                self.unstage()
            told()

        self.stage(desired, opened)

    def _lacks(self, desired: StorageView, error: str, tries: int) -> None:
        assert self._tiers is not None
        self._close(self._tiers.detach())
        now = self._clock()
        try:
            config_hash = self._read(desired).config_hash
        except StorageError:
            config_hash = ""
        retry_at = now + min(FIRST_RETRY_S * 2 ** min(tries, 8), MAX_RETRY_S)
        self._missing = _Missing(desired, error, config_hash, now, retry_at, tries)
        log.warning("storage backend is missing", backend=desired.backend, reason=error)

    def tick(self) -> None:
        """Try a missing backend again when it is due. Nothing while something is being opened."""
        missing = self._missing
        if missing is None or missing.is_trying or self._clock() < missing.retry_at:
            return
        missing.is_trying = True
        self._open_desired(missing.view, tries=missing.tries + 1, told=lambda: None)


@dataclass(slots=True)
class _Missing:
    view: StorageView
    error: str
    config_hash: str
    failed_at: float
    retry_at: float
    tries: int
    is_trying: bool = False


def _closed(opened: Opened) -> None:
    deadline = time.monotonic() + CLOSE_S
    why = (opened.worker or opened.guard).close(deadline)
    if why:
        log.warning("storage backend left open", backend=opened.view.backend, why=why)

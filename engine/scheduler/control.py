"""What an operation does on a rank: the Host that the participant machine decides for.

Knows the scheduler; adding an operation means a case in `commit` (and `stage`, `undo` where it has
an inverse).
"""

from __future__ import annotations

from typing import assert_never

from engine.ipc.messages import ServingState
from engine.log import get_logger
from engine.protocol import FlushCache, Operation, Places
from engine.scheduler.participant import Participant
from engine.scheduler.scheduler import Scheduler

log = get_logger()


class WrongStateError(RuntimeError):
    """This process cannot take the state it is told to; it exits and a new one is started."""


class RankHost:
    """Carries out one rank's part. `participant` is set right after both are made."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.participant: Participant | None = None

    def places(self) -> Places:
        """What is in flight now."""
        return self._scheduler.places()

    def stage(self, operation: Operation, new: ServingState) -> None:
        """A flush has nothing to prepare."""
        assert self.participant is not None and self.participant.op is not None
        match operation:
            case FlushCache():
                self.participant.staged(self.participant.op.id)
            case _:
                assert_never(operation)

    def unstage(self) -> None:
        """A flush stages nothing and keeps nothing."""

    def retract_running(self) -> None:
        """Back to the queue, KV released."""
        self._scheduler.retract_running()

    def abort_running(self, message: str) -> None:
        """End what runs."""
        self._scheduler.abort_running(message)

    def abort_all(self, message: str) -> None:
        """End what runs and what waits."""
        self._scheduler.abort_all(message)

    def drop_requests(self) -> None:
        """Their frontend is gone."""
        self._scheduler.drop_all()

    def commit(self, operation: Operation, new: ServingState) -> None:
        """Make it so."""
        match operation:
            case FlushCache():
                freed = self._scheduler.flush(empty_cache=operation.empty_cache)
                log.info("cache flushed", freed_pages=freed)
            case _:
                assert_never(operation)

    def undo(self, operation: Operation, old: ServingState) -> None:
        """A flush has no inverse and changes no state, so it is never asked for."""
        raise AssertionError(f"undo of {operation.kind}")

    def converge(self, desired: ServingState) -> None:
        """Serve the desired state: this version holds the weights it was started with."""
        loaded = self._scheduler.runner.weight_version
        if desired.weight_version != loaded:
            raise WrongStateError(f"told to serve {desired.weight_version!r}, holds {loaded!r}")

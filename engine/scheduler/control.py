"""What an operation does on a rank: the Host that the participant machine decides for.

Knows the scheduler and the rank's weights; adding an operation means a case in `stage`, `commit`
and, where it has an inverse, `undo`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, assert_never

import msgspec

from engine.cache.keeper import NOT_ENABLED, StorageKeeper
from engine.cache.storage.base import StorageError
from engine.ipc.messages import ServingState
from engine.log import get_logger
from engine.protocol import (
    WEIGHT_UPDATES,
    AbortRequests,
    AttachStorage,
    ClearStorage,
    ContinueGeneration,
    DetachStorage,
    FlushCache,
    MemoryTag,
    Operation,
    PauseGeneration,
    PauseMode,
    Places,
    ReleaseMemory,
    Repair,
    ResumeMemory,
    SetCachePolicies,
    Staging,
    UpdateWeightsFromDisk,
    UpdateWeightsFromDistributed,
    UpdateWeightsFromTensor,
    UpdateWeightVersion,
    WeightsView,
)
from engine.scheduler.effect_log import NoteEffect, nothing_recorded
from engine.scheduler.participant import CommitFailedError, Effect, Participant, UndoFailedError
from engine.scheduler.scheduler import Scheduler
from engine.weights.errors import WeightsError

log = get_logger()

Update = UpdateWeightsFromDisk | UpdateWeightsFromTensor | UpdateWeightsFromDistributed
Told = Callable[[WeightsView | None, str], None]


class Weights(Protocol):
    """The rank's weights: engine.weights.keeper, or a scripted one in tests."""

    @property
    def serving(self) -> WeightsView:
        """What the rank computes with."""

    def staging(self) -> Staging | None:
        """How far it is with others."""

    def stage(self, operation: Update, weights: WeightsView, told: Told) -> None:
        """Begin to stage; ends with `told`."""

    def commit(self, weights: WeightsView) -> None:
        """Swap what is staged in. Raises WeightsError."""

    def undo(self) -> None:
        """Swap what was before back in. Raises WeightsError."""

    def unstage(self) -> None:
        """Drop what is staged or kept."""

    def converge(self, desired: WeightsView, told: Told) -> None:
        """Load and serve recorded weights; ends with `told`."""

    def rename(self, weights: WeightsView) -> None:
        """Another version for the same weights."""

    def release(self) -> None:
        """Give the memory up."""


class RankHost:
    """Carries out one rank's part. `participant` is set right after both are made."""

    def __init__(
        self,
        scheduler: Scheduler,
        weights: Weights,
        storage: StorageKeeper | None = None,
        record: NoteEffect = nothing_recorded,
    ) -> None:
        self._record = record
        self._scheduler = scheduler
        self._weights = weights
        self._storage = storage or StorageKeeper(None)
        self.participant: Participant | None = None

    def places(self) -> Places:
        """What is in flight now."""
        return self._scheduler.places()

    # ---- prepare -----------------------------------------------------------------------------

    def stage(self, operation: Operation, new: ServingState) -> None:
        """Weights are read beside serving; everything else is ready at once, or refused."""
        participant = self.participant
        assert participant is not None and participant.op is not None
        op_id = participant.op.id
        match operation:
            case (
                UpdateWeightsFromDisk() | UpdateWeightsFromTensor() | UpdateWeightsFromDistributed()
            ):
                self._stage_weights(participant, op_id, operation, new)
            case ReleaseMemory() | ResumeMemory():
                participant.staged(op_id, _why_not_now(operation, participant.state))
            case AttachStorage() if self._attaches(new):
                assert new.storage_backend is not None
                self._storage.stage(
                    new.storage_backend, lambda error: participant.staged(op_id, error)
                )
            case AttachStorage() | DetachStorage() | SetCachePolicies():
                participant.staged(op_id, "" if self._storage.is_possible else NOT_ENABLED)
            case ClearStorage():
                participant.staged(op_id, self._storage.why_not_clear())
            case (
                FlushCache()
                | UpdateWeightVersion()
                | PauseGeneration()
                | ContinueGeneration()
                | AbortRequests()
                | Repair()
            ):
                participant.staged(op_id)
            case _:
                assert_never(operation)

    def _stage_weights(
        self, participant: Participant, op_id: int, operation: Update, new: ServingState
    ) -> None:
        if participant.state is not None and MemoryTag.WEIGHTS in participant.state.released:
            participant.staged(op_id, "the weights' memory is released; resume it first")
            return

        def told(weights: WeightsView | None, error: str) -> None:
            if weights is None:
                participant.staged(op_id, error)
                return
            full = msgspec.structs.replace(new, weights=weights, needs_weights=False)
            participant.staged(op_id, new=full)

        self._weights.stage(operation, new.weights, told)

    def staging(self) -> Staging | None:
        """Of the weights; nothing else takes long."""
        op = self.participant.op if self.participant is not None else None
        is_update = op is not None and op.operation.kind in WEIGHT_UPDATES
        return self._weights.staging() if is_update else None

    def unstage(self) -> None:
        """Drop what was staged, and what was kept for an undo."""
        self._weights.unstage()
        self._storage.unstage()

    # ---- requests ----------------------------------------------------------------------------

    def retract_running(self) -> int:
        """Back to the queue, KV released."""
        return self._scheduler.retract_running()

    def abort_running(self, message: str) -> int:
        """End what runs."""
        return self._scheduler.abort_running(message)

    def abort_all(self, message: str) -> None:
        """End what runs and what waits."""
        self._scheduler.abort_all(message)

    def drop_requests(self) -> None:
        """Their frontend is gone."""
        self._scheduler.drop_all()

    # ---- commit and undo ---------------------------------------------------------------------

    def commit(self, operation: Operation, new: ServingState) -> Effect:
        """Make it so. Raises CommitFailedError with the old state in place."""
        started = time.perf_counter()
        interrupted = self._commit(operation, new)
        self._note("commit", operation)
        return Effect(time.perf_counter() - started, interrupted)

    def _note(self, what: str, operation: Operation) -> None:
        """It is done, and is written down before it is told."""
        assert self.participant is not None
        op = self.participant.op
        assert op is not None
        self._record(what, op.id, op.att, str(operation.kind))

    def _commit(self, operation: Operation, new: ServingState) -> int:
        match operation:
            case FlushCache():
                freed = self._scheduler.flush(empty_cache=operation.empty_cache)
                log.info("cache flushed", freed_pages=freed)
            case (
                UpdateWeightsFromDisk() | UpdateWeightsFromTensor() | UpdateWeightsFromDistributed()
            ):
                self._commit_weights(operation, new)
            case UpdateWeightVersion():
                self._weights.rename(new.weights)
            case PauseGeneration():
                return self._pause(operation.pause_mode)
            case ContinueGeneration():
                if operation.torch_empty_cache:
                    self._scheduler.runner.empty_cache()
            case ReleaseMemory():
                self._release(operation.tags)
            case ResumeMemory():
                self._resume(operation.tags)
            case AttachStorage() | DetachStorage() | SetCachePolicies():
                self._commit_tiers(operation, new)
            case ClearStorage():
                self._clear_storage()
            case AbortRequests() | Repair():
                raise AssertionError(f"{operation.kind} is not committed by ranks")
            case _:
                assert_never(operation)
        return 0

    def _commit_weights(self, operation: Update, new: ServingState) -> None:
        """Swap, then flush if asked; when the flush fails, the old weights are back."""
        try:
            self._weights.commit(new.weights)
        except WeightsError as error:
            raise CommitFailedError(str(error)) from error
        try:
            if operation.flush_cache and MemoryTag.KV_CACHE not in new.released:
                self._scheduler.flush(empty_cache=operation.torch_empty_cache)
            elif operation.torch_empty_cache:
                self._scheduler.runner.empty_cache()
        except Exception as error:
            self._weights.undo()
            log.error("flush after the swap failed, the old weights are back", exc_info=error)
            raise CommitFailedError(
                f"the weights were loaded, but the flush failed ({error}); the old ones are back"
            ) from error

    def _attaches(self, new: ServingState) -> bool:
        """A backend is to be opened: another one, or the same where this rank lacks it."""
        wanted = new.storage_backend
        return wanted is not None and (self._storage.view != wanted or self._storage.is_missing)

    def _commit_tiers(self, operation: Operation, new: ServingState) -> None:
        is_opened = isinstance(operation, AttachStorage) and self._attaches(new)
        if is_opened or self._storage.view != new.storage_backend:
            try:
                self._storage.commit(new.storage_backend)
            except StorageError as error:
                raise CommitFailedError(str(error)) from error
        self._storage.set_policies(new.policies)

    def _clear_storage(self) -> None:
        try:
            deleted = self._storage.clear()
        except StorageError as error:
            raise CommitFailedError(f"not cleared, or in part: {error}") from error
        log.info("storage cleared", pages=deleted)

    def _pause(self, mode: PauseMode) -> int:
        match mode:
            case PauseMode.ABORT:
                return self._scheduler.abort_all("Aborted")
            case PauseMode.RETRACT:
                return self._scheduler.retract_running()
            case PauseMode.IN_PLACE:
                return 0

    def _release(self, tags: tuple[MemoryTag, ...]) -> None:
        if MemoryTag.KV_CACHE in tags:
            self._scheduler.flush(empty_cache=False)
            self._scheduler.runner.release_kv()
        if MemoryTag.WEIGHTS in tags:
            self._weights.release()
        self._scheduler.runner.empty_cache()

    def _resume(self, tags: tuple[MemoryTag, ...]) -> None:
        if MemoryTag.KV_CACHE in tags:
            try:
                self._scheduler.runner.resume_kv()
            except (MemoryError, OSError, RuntimeError) as error:
                raise CommitFailedError(f"no memory for the KV cache: {error}") from error

    def undo(self, operation: Operation, old: ServingState) -> None:
        """Take a commit back. Raises UndoFailedError with the new state in place."""
        self._undo(operation, old)
        self._note("undo", operation)

    def _undo(self, operation: Operation, old: ServingState) -> None:
        match operation:
            case (
                UpdateWeightsFromDisk() | UpdateWeightsFromTensor() | UpdateWeightsFromDistributed()
            ):
                try:
                    self._weights.undo()
                except WeightsError as error:
                    raise UndoFailedError(str(error)) from error
            case UpdateWeightVersion():
                self._weights.rename(old.weights)
            case PauseGeneration() | ContinueGeneration():
                return  # the state says whether it steps; requests that were ended stay so
            case ReleaseMemory():
                if MemoryTag.WEIGHTS in operation.tags:
                    raise UndoFailedError("the weights' contents are gone; repair loads them again")
                self._resume(operation.tags)
            case ResumeMemory():
                if MemoryTag.KV_CACHE in operation.tags:
                    self._scheduler.runner.release_kv()
            case AttachStorage() | DetachStorage() | SetCachePolicies():
                if self._storage.view != old.storage_backend:
                    self._storage.undo()
                self._storage.set_policies(old.policies)
            case FlushCache() | ClearStorage() | AbortRequests() | Repair():
                raise AssertionError(f"undo of {operation.kind}")
            case _:
                assert_never(operation)

    # ---- converge ----------------------------------------------------------------------------

    def converge(self, desired: ServingState) -> None:
        """Take this state, loading the weights where this rank holds others."""
        participant = self.participant
        assert participant is not None
        wants = desired.weights

        def told(weights: WeightsView | None, error: str) -> None:
            if weights is None:
                participant.converged(desired, error)
                return
            self._take_memory(desired)
            self._storage.set_policies(desired.policies)
            self._storage.converge(
                desired.storage_backend, lambda: participant.converged(desired, "")
            )

        self._weights.unstage()
        self._storage.unstage()
        is_empty = desired.needs_weights or MemoryTag.WEIGHTS in desired.released
        if is_empty:
            self._weights.release()
        if is_empty or wants.checksum == self._weights.serving.checksum:
            self._weights.rename(wants)
            told(wants, "")
        else:
            self._weights.converge(wants, told)

    def _take_memory(self, desired: ServingState) -> None:
        """After the weights: KV as the state has it, and nothing cached of other weights."""
        runner = self._scheduler.runner
        if MemoryTag.KV_CACHE in desired.released:
            self._scheduler.flush(empty_cache=False)
            runner.release_kv()
        elif not runner.has_kv:
            runner.resume_kv()


def _why_not_now(operation: ReleaseMemory | ResumeMemory, state: ServingState | None) -> str:
    """A typed refusal where SGLang's process would end: released twice, or resumed unreleased."""
    released = state.released if state is not None else ()
    for tag in operation.tags:
        if isinstance(operation, ReleaseMemory) and tag in released:
            return f"{tag} is already released"
        if isinstance(operation, ResumeMemory) and tag not in released:
            return f"{tag} is not currently released"
    return ""

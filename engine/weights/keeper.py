"""The weights of one rank: those that serve, those staged beside them, those kept for an undo.

One thread calls it, the scheduler's; reading happens in the background. Knows no request: whoever
calls `commit` or `undo` sees to it that nothing is being computed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from engine.models.digest import Digest
from engine.protocol import (
    Staging,
    UpdateWeightsFromDisk,
    UpdateWeightsFromDistributed,
    UpdateWeightsFromTensor,
    WeightSource,
    WeightsView,
)
from engine.runner.model_runner import ModelRunner
from engine.weights.background import Background, Job
from engine.weights.errors import WeightsError
from engine.weights.group import TrainerGroups
from engine.weights.sources import Opened, from_disk, from_start, from_upload
from engine.weights.staging import Staged, stage, why

Update = UpdateWeightsFromDisk | UpdateWeightsFromTensor | UpdateWeightsFromDistributed
Told = Callable[[WeightsView | None, str], None]  # the weights in full, or why there are none


class WeightKeeper:
    """`start_dir` is the folder that the engine was started with, `own_dir` its own."""

    def __init__(
        self,
        runner: ModelRunner,
        background: Background,
        groups: TrainerGroups,
        *,
        start_dir: Path,
        own_dir: Path,
        roots: list[Path],
    ) -> None:
        self._runner = runner
        self._background = background
        self._groups = groups
        self._start_dir, self._own_dir, self._roots = start_dir, own_dir, roots
        self._job: Job[Staged] | None = None
        self._staged: Staged | None = None
        self._kept: tuple[Any, WeightsView] | None = None  # the runner's model before the commit
        self._last: Staging | None = None

    def staging(self) -> Staging | None:
        """How far it is; of the last one, when none is under way."""
        return self._job.staging() if self._job is not None else self._last

    @property
    def serving(self) -> WeightsView:
        """What the rank computes with."""
        return self._runner.weights

    # ---- an operation ------------------------------------------------------------------------

    def stage(self, operation: Update, weights: WeightsView, told: Told) -> None:
        """Begin to read; ends with `told`, unless `unstage` comes first."""
        self.unstage()

        def work(job: Job[Staged]) -> Staged:
            staged = stage(
                job,
                self._opened(operation, job),
                self._runner,
                weights,
                is_checked=not operation.allow_nonfinite,
                expected=operation.expected_checksum or "",
            )
            if isinstance(operation, UpdateWeightsFromDistributed):
                self._groups.spill(operation.session, Path(weights.path), self._runner.dtype)
            return staged

        self._begin(work, told)

    def _opened(self, operation: Update, job: Job[Staged]) -> AbstractContextManager[Opened]:
        config = self._runner.config
        match operation:
            case UpdateWeightsFromDisk():
                return from_disk(operation.model_path, config, self._roots)
            case UpdateWeightsFromTensor():
                return from_upload(self._own_dir / operation.upload_id, config)
            case UpdateWeightsFromDistributed():
                return self._groups.received(operation, config, self._runner.dtype, job.note)

    def _begin(self, work: Callable[[Job[Staged]], Staged], told: Told) -> None:
        def done(job: Job[Staged]) -> None:
            self._job, self._staged, self._last = None, job.result, job.staging()
            told(job.result.weights if job.result is not None else None, why(job.error))

        self._job = self._background.start(Job("stage"), work, done)

    def commit(self, weights: WeightsView) -> None:
        """Swap the staged weights in; those before are kept. Raises WeightsError."""
        staged = self._staged
        if staged is None or staged.weights.checksum != weights.checksum:
            raise WeightsError("the weights that were staged are gone")
        before = self._runner.weights
        self._kept = (self._runner.swap(staged.model, weights), before)
        self._staged = None

    def undo(self) -> None:
        """Put the kept weights back. Raises WeightsError."""
        if self._kept is None:
            raise WeightsError("the weights from before are gone")
        model, weights = self._kept
        self._kept = None
        self._let_go(self._runner.swap(model, weights))

    def unstage(self) -> None:
        """Drop what is staged and what is kept. Harmless when there is neither."""
        if self._job is not None:
            self._job.cancel()
            self._job = None
        staged, self._staged = self._staged, None
        kept, self._kept = self._kept, None
        self._let_go(staged, kept)

    def _let_go(self, *things: object) -> None:
        self._background.drop([thing for thing in things if thing is not None])

    # ---- a rank that is not as it should be ---------------------------------------------------

    def converge(self, desired: WeightsView, told: Told) -> None:
        """Take weights that are recorded, by their checksum; ends with `told`."""
        self.unstage()

        def work(job: Job[Staged]) -> Staged:
            opened = self._recorded(desired)
            return stage(
                job,
                opened,
                self._runner,
                desired,
                is_checked=False,
                expected=desired.checksum,
            )

        def taken(weights: WeightsView | None, error: str) -> None:
            if weights is not None and self._staged is not None:
                self._let_go(self._runner.swap(self._staged.model, weights))
                self._staged = None
            told(weights, error)

        self._begin(work, taken)

    def _recorded(self, weights: WeightsView) -> AbstractContextManager[Opened]:
        config = self._runner.config
        match weights.source:
            case WeightSource.START:
                return from_start(self._start_dir, config)
            case WeightSource.DISK:
                return from_disk(weights.path, config, self._roots)
            case WeightSource.TENSOR | WeightSource.DISTRIBUTED:
                return from_upload(Path(weights.path), config)

    def rename(self, weights: WeightsView) -> None:
        """The same weights under another version."""
        self._runner.weights = weights

    # ---- memory ------------------------------------------------------------------------------

    def release(self) -> None:
        """Give the weights' memory up; nothing may be computed until others are committed."""
        self.unstage()
        # In a list, which `drop` empties: another name here would keep the memory a little longer.
        before: list[object] = [self._runner.swap(None, self._runner.weights)]
        if before[0] is not None:
            self._background.drop(before, then=self._runner.return_unused)

    # ---- questions ---------------------------------------------------------------------------

    def digest(self) -> Digest | None:
        """The checksums of what serves, as they were made when it was loaded."""
        return self._runner.digest

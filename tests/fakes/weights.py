"""A rank's weights, scripted: the seam at which a rank's part in an update can be made to fail.

Keeps the promises of engine.weights.keeper over a FakeRunner: what is committed is what the runner
then computes with, and an undo puts back what was before.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.protocol import Staging, WeightsView
from engine.protocol.operations import WeightUpdate
from engine.weights.errors import WeightsError
from tests.fakes.runner import FakeRunner

Told = Callable[[WeightsView | None, str], None]


class ScriptedWeights:
    """Set `stage_error`, `commit_error`, `undo_error`, `checksum` or `is_slow` before an update."""

    def __init__(self, runner: FakeRunner) -> None:
        self.runner = runner
        self.stage_error = self.commit_error = self.undo_error = self.converge_error = ""
        self.checksum = ""  # of what is staged; else it follows from the path
        self.is_slow = False  # `finish` ends what was begun
        self.staged: WeightsView | None = None
        self.kept: WeightsView | None = None
        self.num_staged = 0
        self._finish: Callable[[], None] | None = None

    @property
    def serving(self) -> WeightsView:
        return self.runner.weights

    def staging(self) -> Staging | None:
        return None

    def finish(self) -> None:
        """What is slow ends now."""
        finish, self._finish = self._finish, None
        assert finish is not None
        finish()

    def _end(self, end: Callable[[], None]) -> None:
        if self.is_slow:
            self._finish = end
        else:
            end()

    def stage(self, operation: WeightUpdate, weights: WeightsView, told: Told) -> None:
        self.unstage()
        self.num_staged += 1

        def end() -> None:
            if self.stage_error:
                told(None, self.stage_error)
                return
            checksum = self.checksum or f"sum-of-{weights.path}"
            version = weights.version or checksum[:12]
            self.staged = msgspec.structs.replace(weights, version=version, checksum=checksum)
            told(self.staged, "")

        self._end(end)

    def commit(self, weights: WeightsView) -> None:
        if self.commit_error:
            raise WeightsError(self.commit_error)
        assert self.staged is not None
        self.kept, self.staged = self.runner.weights, None
        self.runner.swap(weights, weights)

    def undo(self) -> None:
        if self.undo_error:
            raise WeightsError(self.undo_error)
        assert self.kept is not None
        self.runner.swap(self.kept, self.kept)
        self.kept = None

    def unstage(self) -> None:
        self.staged = self.kept = None
        self._finish = None

    def converge(self, desired: WeightsView, told: Told) -> None:
        def end() -> None:
            if self.converge_error:
                told(None, self.converge_error)
                return
            self.runner.swap(desired, desired)
            told(desired, "")

        self._end(end)

    def rename(self, weights: WeightsView) -> None:
        self.runner.weights = weights

    def release(self) -> None:
        self.unstage()

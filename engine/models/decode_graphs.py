"""Decode steps as recorded graphs: one launch where a model has hundreds.

A graph is recorded for a bucket of batch sizes, when one of its size first comes, over tensors that
stay where they are: a step writes its numbers there, pads the rest with tokens at position -1, and
replays. Graphs hold the addresses of the weights and of the pool: the owner calls `forget` when
either changes. How a graph is recorded is behind `Recorder`, so all of this runs without a card.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kernels.gpu.page_table import PageTable
from engine.log import get_logger
from engine.models.packed_inputs import ALIGNED_NUMBERS, first_page_of_token, pinned
from engine.models.step_inputs import StepInputs

log = get_logger()

# Finer where a step of twice the size costs noticeably more. A graph is recorded only when needed.
BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
MOST_PAGES = 1 << 20  # of one step, 4 MiB of numbers; a step of more runs without a graph


class Recorder(Protocol):
    """Records what a call launches."""

    def record(self, call: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        """Run `call` and record it; return what launches it again, and the tensor that then holds
        its result. Raises RuntimeError."""


class GraphModel(Protocol):
    """The two halves of a step, over numbers that are on the device already."""

    def decode_hidden(self, numbers: DecodeNumbers) -> torch.Tensor:
        """Launch the layers for (B,) tokens; return (B, hidden)."""

    def choose(self, hidden: torch.Tensor) -> torch.Tensor:
        """Launch the head; return int64 (2, B): tokens, and 1 where the row is finite."""


@dataclass(frozen=True, slots=True)
class DecodeNumbers:
    """int32 on the device, always at the same addresses."""

    ids: torch.Tensor  # (B,)
    rows: torch.Tensor  # (B,): 0, 1, 2, …
    table: PageTable


@dataclass(frozen=True, slots=True)
class _Recorded:
    replay_trunk: Callable[[], None]
    hidden: torch.Tensor  # (B, hidden)
    replay_head: Callable[[], None]
    chosen: torch.Tensor  # (2, B)


class DecodeGraphs:
    """Of one model over one pool."""

    def __init__(
        self,
        model: GraphModel,
        recorder: Recorder,
        device: torch.device,
        buckets: tuple[int, ...] = BUCKETS,
    ) -> None:
        """Record nothing yet. The numbers take 4 MiB on the device."""
        self._model, self._recorder, self._device = model, recorder, device
        self._buckets = buckets
        self._graphs: dict[int, _Recorded] = {}
        self._is_broken = False
        # Three runs of a number a token, then the pages; at the same places for every bucket.
        self._width = -(-buckets[-1] // ALIGNED_NUMBERS) * ALIGNED_NUMBERS
        size = 3 * self._width + MOST_PAGES
        self._numbers = torch.zeros(size, dtype=torch.int32, device=device)
        self._rows = torch.arange(buckets[-1], dtype=torch.int32, device=device)

    @property
    def recorded(self) -> list[int]:
        """Buckets that have a graph."""
        return sorted(self._graphs)

    def forget(self) -> None:
        """Weights or pool are others now, or none: what was recorded must not run again."""
        self._graphs.clear()

    def bucket_of(self, inputs: StepInputs) -> int | None:
        """Return the smallest bucket that holds the step; None where no graph can run it: it is no
        pure decode, or too large, or recording has failed before."""
        tokens = len(inputs.ids)
        is_decode = tokens == len(inputs.start) - 1 > 0
        if not is_decode or self._is_broken or len(inputs.pages) > MOST_PAGES:
            return None
        return next((bucket for bucket in self._buckets if bucket >= tokens), None)

    def hidden(self, inputs: StepInputs, bucket: int) -> torch.Tensor | None:
        """Return the wanted rows' state after the last norm (R, hidden), the caller's own; None
        where the graph cannot be recorded."""
        graph = self._launch_trunk(inputs, bucket)
        if graph is None:
            return None
        if np.array_equal(inputs.rows, np.arange(len(inputs.ids))):
            return graph.hidden[: len(inputs.rows)].clone()
        return graph.hidden[torch.from_numpy(inputs.rows).to(self._device)]

    def greedy(self, inputs: StepInputs, bucket: int) -> NDArray[np.int64] | None:
        """Return the wanted rows' tokens, and 1 where finite, (2, R); None likewise."""
        graph = self._launch_trunk(inputs, bucket)
        if graph is None:
            return None
        graph.replay_head()
        chosen: NDArray[np.int64] = graph.chosen.cpu().numpy()[:, inputs.rows]
        return chosen

    def _launch_trunk(self, inputs: StepInputs, bucket: int) -> _Recorded | None:
        self._place(inputs, bucket)
        graph = self._graphs.get(bucket)
        if graph is None:
            graph = self._record(bucket)
            if graph is None:
                return None
            self._graphs[bucket] = graph
        graph.replay_trunk()
        return graph

    def _place(self, inputs: StepInputs, bucket: int) -> None:
        """One copy to the device: from its first number to its last page."""
        tokens, width = len(inputs.ids), self._width
        numbers = np.zeros(3 * width + len(inputs.pages), np.int32)
        numbers[:tokens] = inputs.ids
        numbers[width : width + bucket] = -1
        numbers[width : width + tokens] = inputs.pos
        numbers[2 * width : 2 * width + tokens] = first_page_of_token(inputs)
        numbers[3 * width :] = inputs.pages
        self._numbers[: len(numbers)].copy_(pinned(numbers, self._device), non_blocking=True)

    def _record(self, bucket: int) -> _Recorded | None:
        started = time.monotonic()
        ids, pos, first_page = (
            self._numbers[at * self._width : at * self._width + bucket] for at in range(3)
        )
        table = PageTable(pos, first_page, self._numbers[3 * self._width :])
        numbers = DecodeNumbers(ids, self._rows[:bucket], table)
        try:
            replay_trunk, hidden = self._recorder.record(lambda: self._model.decode_hidden(numbers))
            replay_head, chosen = self._recorder.record(lambda: self._model.choose(hidden))
        except RuntimeError as error:
            # Slower without, but right; an error of the card itself shows again in the next step.
            log.warning("decode graphs unavailable", detail=str(error)[:500])
            self._is_broken = True
            return None
        log.info("decode recorded", requests=bucket, took_s=round(time.monotonic() - started, 3))
        return _Recorded(replay_trunk, hidden, replay_head, chosen)

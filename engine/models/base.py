"""What a runner asks of a model, whatever computes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engine.memory.device_pool import DevicePool
from engine.memory.kv_layout import KVLayout
from engine.models.step_inputs import StepInputs


class TensorSource(Protocol):
    """Where weights come from: a checkpoint on disk, or tensors that were sent."""

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Return the tensor of that Hugging Face name, in `dtype`, on the CPU."""


class StepModel(Protocol):
    """A model over a paged KV pool. Weights are loaded, and a pool bound, before the first step.

    `R` is the number of `inputs.rows`. Every call writes KV of all the step's tokens, so the same
    step may be run again. A row that is not finite tells nothing about the others.
    """

    kv_layout: KVLayout

    def load(self, source: TensorSource) -> None:
        """Take the weights, in place if there are some already."""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor under its Hugging Face name, on the CPU, from what is computed with:
        the inverse of `load`, bit for bit."""

    def bind(self, pool: DevicePool) -> None:
        """Use `pool`, whose layout is `kv_layout`, from now on."""

    def unbind(self) -> None:
        """Let go of the pool; nothing is computed until another is bound."""

    def greedy(self, inputs: StepInputs) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the most likely token of each row (R,), and whether its logits are finite."""

    def hidden(self, inputs: StepInputs) -> torch.Tensor:
        """Return the rows' state after the last norm (R, hidden), on the model's device."""

    def logits(self, hidden: torch.Tensor) -> tuple[torch.Tensor, NDArray[np.bool_]]:
        """Return fp32 logits (R, V) on the model's device, and which rows are all finite."""

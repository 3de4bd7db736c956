"""What a Llama's layers are made of, whatever computes it: the seam between its maths and kernels.

`LlamaTorch` holds the maths, once; torch operators and Triton kernels stand behind this interface.
"""

from __future__ import annotations

from typing import Protocol

import torch

from engine.memory.device_pool import DevicePool
from engine.models.step_inputs import StepInputs


class StepOperators(Protocol):
    """The operators of one step: they know its tokens, where those lie, and the pool.

    The residual stream is fp32 (T, hidden); everything else is in the model's dtype.
    """

    ids: torch.Tensor  # (T,) on the device
    rows: torch.Tensor  # (R,) tokens whose output is wanted

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the RMS norm of x (T, hidden)."""

    def add_norm(self, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Add y to x in place, and return the RMS norm of the sum."""

    def attend(
        self,
        qkv: torch.Tensor,
        layer: int,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
    ) -> torch.Tensor:
        """Norm and rotate q and k of qkv (T, (H + 2 Hkv) * D), store k and v in the layer's pages,
        and return what q finds there (T, H * D)."""

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up (T, ffn) of gate_up (T, 2 * ffn)."""


class Operators(Protocol):
    """Makes the operators of each step."""

    def begin(self, inputs: StepInputs, pool: DevicePool) -> StepOperators:
        """Send the step's numbers to the device."""

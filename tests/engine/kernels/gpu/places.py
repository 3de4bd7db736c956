"""What the checks of the Triton kernels share: where they run, how large, and paged KV to run on.

A `check_*.py` is a test file that only a process of its own collects, because triton is imported
either with its interpreter or without: `test_gpu_kernels.py` runs them all interpreted, on a CPU,
and `tests/bench/gpu.sh` runs the same files compiled, on a card, over larger sizes too.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

import numpy as np
import torch

from engine.kernels.gpu.page_table import PageTable
from engine.kernels.paged_attention import AttentionPlan
from engine.models.forward_batch import Part
from engine.models.operators_torch import make_plan
from engine.models.packed_inputs import first_page_of_token
from engine.models.step_inputs import Limits, StepInputs, make_inputs

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")
# The interpreter multiplies the bits of bfloat16 as if they were whole numbers (triton 3.9).
DTYPES = [torch.float32, torch.float16] + ([] if IS_INTERPRETED else [torch.bfloat16])
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """Equal but for rounding in `dtype`; no NaN on either side."""
    bound = TOLERANCE[dtype]
    torch.testing.assert_close(found.float(), expected.float(), rtol=bound, atol=bound)


@dataclass(frozen=True)
class Shape:
    """Of attention; the groups that share a kv head are heads ÷ kv_heads."""

    heads: int
    kv_heads: int
    dim: int
    page_size: int


@dataclass(frozen=True)
class Step:
    """A step over a pool that holds the tokens before it, and NaN wherever nothing was stored."""

    inputs: StepInputs
    table: PageTable
    plan: AttentionPlan
    k_pool: torch.Tensor  # (P, Hkv, S, D)
    v_pool: torch.Tensor


def make_step(
    shape: Shape, dtype: torch.dtype, parts: list[tuple[int, int]], seed: int = 0
) -> Step:
    """Parts are (cached, new) tokens; their pages lie in no order."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    size = shape.page_size
    widths = [-(-(cached + new) // size) for cached, new in parts]
    num_pages = sum(widths) + 3
    free = rng.sample(range(num_pages), num_pages)
    pages = [[free.pop() for _ in range(width)] for width in widths]
    pool_shape = (2, num_pages, shape.kv_heads, size, shape.dim)
    pools = torch.full(pool_shape, float("nan"), dtype=dtype)
    for (cached, _), own in zip(parts, pages, strict=True):
        for at in range(0, cached, size):
            count = min(size, cached - at)
            run = torch.randn((2, shape.kv_heads, count, shape.dim), generator=generator)
            pools[:, own[at // size], :, :count] = run.to(dtype)
    batch = [
        Part([0] * new, cached, own, None) for (cached, new), own in zip(parts, pages, strict=True)
    ]
    inputs = make_inputs(batch, Limits(1, num_pages, size, 1 << 20))
    k_pool, v_pool = pools.to(DEVICE)
    return Step(inputs, page_table(inputs), make_plan(inputs, size, DEVICE), k_pool, v_pool)


def page_table(inputs: StepInputs) -> PageTable:
    """As the operators send it, each tensor on its own."""
    arrays = (inputs.pos, first_page_of_token(inputs), inputs.pages)
    return PageTable(*(on_device(array) for array in arrays))


def on_device(array: np.ndarray) -> torch.Tensor:
    """int32."""
    return torch.from_numpy(array.astype(np.int32)).to(DEVICE)


def random_like(*shape: int, dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)

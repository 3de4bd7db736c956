"""The fused kernels around attention beside torch's operators, over odd sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)

from engine.kernels.gpu.norms import add_norm
from engine.kernels.gpu.rotate_store import Rotary, rotate_store
from engine.kernels.gpu.silu_mul import silu_mul
from engine.kernels.paged_attention import store_kv
from engine.models.operators_torch import rotate
from tests.engine.kernels.gpu.places import (
    DEVICE,
    DTYPES,
    IS_INTERPRETED,
    Shape,
    close,
    make_step,
    random_like,
)

EPS = 1e-5
COLUMNS = [1, 48, 577] + ([] if IS_INTERPRETED else [4096, 16_385])
SHAPES = [Shape(9, 3, 64, 16), Shape(5, 1, 24, 1), Shape(2, 2, 2, 4)]
if not IS_INTERPRETED:
    SHAPES += [Shape(32, 8, 128, 64), Shape(40, 8, 80, 32)]


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMS norm in torch."""
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + EPS)
    return (x.float() * scale * weight.float()).to(weight.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", COLUMNS)
def test_a_row_is_added_and_normed(columns: int, dtype: torch.dtype) -> None:
    x = random_like(3, columns, dtype=torch.float32)
    y, weight = random_like(3, columns, dtype=dtype, seed=2), random_like(columns, dtype=dtype)
    total = x + y
    close(add_norm(x, None, weight, EPS), normed(x, weight), dtype)
    found = add_norm(x, y, weight, EPS)
    close(x, total, torch.float32)
    close(found, normed(total, weight), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ffn", [1, 96, 1537])
def test_a_gate_multiplies_what_goes_up(ffn: int, dtype: torch.dtype) -> None:
    gate_up = random_like(3, 2 * ffn, dtype=dtype) * 4
    gate, up = gate_up.float().chunk(2, dim=1)
    close(silu_mul(gate_up), F.silu(gate) * up, dtype)


def test_no_rows_are_no_launch() -> None:
    nothing = torch.empty(0, 6, device=DEVICE)
    assert add_norm(nothing, nothing, torch.ones(6, device=DEVICE), EPS).shape == (0, 6)
    assert silu_mul(nothing).shape == (0, 3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_heads_are_normed_rotated_and_stored(
    shape: Shape, has_norm: bool, dtype: torch.dtype
) -> None:
    step = make_step(shape, dtype, [(0, 5), (17, 1), (63, 2), (2, 1)])
    tokens, half = len(step.inputs.ids), shape.dim // 2
    qkv = random_like(tokens, (shape.heads + 2 * shape.kv_heads) * shape.dim, dtype=dtype)
    angles = random_like(70, half, dtype=torch.float32)
    rotary = Rotary(
        angles.cos(),
        angles.sin(),
        random_like(shape.dim, dtype=dtype, seed=3) if has_norm else None,
        random_like(shape.dim, dtype=dtype, seed=4) if has_norm else None,
        EPS,
    )
    step.table.pos[-1] = -1  # this one only pads: its page stays as it is
    k_expected, v_expected = step.k_pool.clone(), step.v_pool.clone()
    q, k, v = qkv.view(tokens, -1, shape.dim).split([shape.heads, *[shape.kv_heads] * 2], dim=1)
    if rotary.q_norm is not None and rotary.k_norm is not None:
        q, k = normed(q, rotary.q_norm), normed(k, rotary.k_norm)
    pos = step.table.pos.long().clamp(min=0)
    cos, sin = rotary.cos[pos][:, None], rotary.sin[pos][:, None]
    page, slot = step.plan.page_of_token[-1], step.plan.slot_of_token[-1]
    kept = k_expected[page, :, slot].clone(), v_expected[page, :, slot].clone()
    store_kv(rotate(k, cos, sin), v, k_expected, v_expected, step.plan)
    k_expected[page, :, slot], v_expected[page, :, slot] = kept
    found = rotate_store(qkv, step.k_pool, step.v_pool, step.table, rotary)
    close(found[:-1], rotate(q, cos, sin)[:-1], dtype)
    close(step.k_pool.nan_to_num(7.0), k_expected.nan_to_num(7.0), dtype)
    assert torch.equal(step.v_pool.nan_to_num(7.0), v_expected.nan_to_num(7.0))

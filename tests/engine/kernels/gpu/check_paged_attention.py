"""Paged decode and extend attention beside torch's, over odd sizes."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.gpu.paged_decode import (
    MIN_CHUNK_TOKENS,
    attend_decodes,
    splits_for,
)
from engine.kernels.gpu.paged_extend import Tiles, TileShape, attend_extends, tile_shape
from engine.kernels.paged_attention import attend, store_kv
from engine.models.packed_inputs import decode_rows, extend_tiles
from tests.engine.kernels.gpu.places import (
    DEVICE,
    DTYPES,
    IS_INTERPRETED,
    Shape,
    Step,
    close,
    make_step,
    on_device,
    random_like,
)

SHAPES = [Shape(6, 2, 64, 16), Shape(3, 1, 128, 1), Shape(2, 2, 24, 32), Shape(3, 1, 8, 64)]
PARTS = [(0, 1), (36, 1), (0, 19), (63, 1), (5, 3), (31, 34)]
if not IS_INTERPRETED:
    SHAPES += [
        Shape(9, 3, 64, 16),
        Shape(32, 8, 128, 16),
        Shape(64, 8, 64, 64),
        Shape(20, 1, 80, 4),
    ]
    PARTS = [*PARTS, (4095, 1), (1000, 513), (257, 2), (8191, 1), (0, 1), (2000, 129)]
SMALL = TileShape(rows=16, keys=16, warps=4, stages=1)


def fill(step: Step, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Store k and v of the step's own tokens; return their q (T, H, D)."""
    tokens = len(step.inputs.ids)
    k, v = random_like(2, tokens, shape.kv_heads, shape.dim, dtype=dtype)
    store_kv(k, v, step.k_pool, step.v_pool, step.plan)
    return random_like(tokens, shape.heads, shape.dim, dtype=dtype, seed=2)


def attended(step: Step, q: torch.Tensor, num_splits: int, tile: TileShape) -> torch.Tensor:
    """The kernels' answer; rows that no kernel writes stay NaN."""
    out = torch.full_like(q, float("nan"))
    pools = (step.k_pool, step.v_pool)
    row, stop = (on_device(found) for found in extend_tiles(step.inputs, tile.rows))
    rows = on_device(decode_rows(step.inputs))
    attend_decodes(q, *pools, step.table, rows, out, num_splits)
    attend_extends(q, *pools, step.table, Tiles(row, stop, tile), out)
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_mixed_step_is_as_torch_attends_it(shape: Shape, dtype: torch.dtype) -> None:
    step = make_step(shape, dtype, PARTS)
    q = fill(step, shape, dtype)
    tile = SMALL if IS_INTERPRETED else tile_shape(dtype, shape.dim)
    found = attended(step, q, 1, tile)
    close(found, attend(q, step.k_pool, step.v_pool, step.plan), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_splits", [2, 7])
def test_a_context_in_splits_is_as_torch_attends_it(num_splits: int, dtype: torch.dtype) -> None:
    shape = Shape(3, 1, 16, 16)
    contexts = [1, MIN_CHUNK_TOKENS, MIN_CHUNK_TOKENS + 1, 2 * MIN_CHUNK_TOKENS + 5]
    step = make_step(shape, dtype, [(context - 1, 1) for context in contexts])
    q = fill(step, shape, dtype)
    close(
        attended(step, q, num_splits, SMALL),
        attend(q, step.k_pool, step.v_pool, step.plan),
        dtype,
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the interpreter: NaN is meant
@pytest.mark.parametrize("num_splits", [1, 3])
def test_a_token_that_only_pads_reads_no_page_and_gives_zeros(num_splits: int) -> None:
    shape = Shape(4, 2, 16, 4)
    step = make_step(shape, torch.float32, [(9, 1), (0, 1)])
    q = fill(step, shape, torch.float32)
    step.table.pos[1] = -1
    step.k_pool.fill_(float("nan"))
    found = attended(step, q, num_splits, SMALL)
    assert found[0].isnan().all()  # the other one does read them
    assert not found[1].any()


def test_a_tile_of_no_tokens_writes_nothing() -> None:
    shape = Shape(2, 1, 16, 4)
    step = make_step(shape, torch.float32, [(0, 3)])
    q = fill(step, shape, torch.float32)
    out = torch.full_like(q, 7.0)
    zero = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    attend_extends(q, step.k_pool, step.v_pool, step.table, Tiles(zero, zero, SMALL), out)
    assert (out == 7.0).all()


def test_few_long_contexts_are_split_and_many_are_not() -> None:
    assert splits_for(1, 8, 131_072, 132) == 33
    assert splits_for(64, 8, 131_072, 132) == 1
    assert splits_for(1, 1, 131_072, 132) == 64
    assert splits_for(1, 8, 300, 132) == 2
    assert splits_for(3, 8, 0, 132) == 1


@pytest.mark.skipif(IS_INTERPRETED, reason="the pool takes 9 GiB")
def test_a_pool_of_more_than_two_to_the_31_numbers_is_read_where_it_should_be() -> None:
    shape, dtype = Shape(8, 8, 128, 64), torch.float16
    num_pages = (1 << 31) // (8 * 64 * 128) + 2
    step = make_step(shape, dtype, [(70, 1), (3, 20)])
    q = fill(step, shape, dtype)
    expected = attend(q, step.k_pool, step.v_pool, step.plan)
    k_pool, v_pool = torch.empty(2, num_pages, 8, 64, 128, dtype=dtype, device=DEVICE)
    own = len(step.k_pool)
    k_pool[-own:], v_pool[-own:] = step.k_pool, step.v_pool
    step.table.pages.add_(num_pages - own)
    far = Step(step.inputs, step.table, step.plan, k_pool, v_pool)
    close(attended(far, q, 1, tile_shape(dtype, 128)), expected, dtype)

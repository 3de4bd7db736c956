"""The pool of pages: opaque bytes, and poison."""

from __future__ import annotations

import pytest
import torch

from engine.memory.device_pool import DevicePool, pages_in_budget
from engine.memory.kv_layout import KVLayout

LAYOUT = KVLayout(2, 32, 16, torch.bfloat16, is_interleaved=True)


def new_pool(num_pages: int = 6) -> DevicePool:
    return DevicePool(LAYOUT, 3, num_pages, torch.device("cpu"))


def test_a_pool_starts_zeroed_and_counts_its_bytes() -> None:
    pool = new_pool()
    assert all((side == 0).all() for side in (*pool.k, *pool.v))
    assert pool.page_bytes() == 3 * 2 * LAYOUT.side_bytes
    assert sum(side.nbytes for side in (*pool.k, *pool.v)) == 6 * pool.page_bytes()


def test_a_page_is_a_run_of_bytes_that_can_be_copied() -> None:
    pool = new_pool()
    pool.k[1][2], pool.v[1][2] = 1.5, -2.5
    for side in pool.layer_bytes(1):
        assert side.shape == (6, LAYOUT.side_bytes) and side.dtype == torch.uint8
        side[5] = side[2]
    assert (pool.k[1][5] == 1.5).all() and (pool.v[1][5] == -2.5).all()
    assert (pool.k[1][4] == 0).all() and (pool.k[0][5] == 0).all()


def test_poison_fills_the_named_pages_or_all() -> None:
    pool = new_pool()
    pool.poison([1, 4])
    for side in (*pool.k, *pool.v):
        assert side.isnan().flatten(1).all(1).tolist() == [i in (1, 4) for i in range(6)]
    pool.poison([])
    assert not pool.k[0][0].isnan().any()
    pool.poison()
    assert all(side.isnan().all() for side in (*pool.k, *pool.v))


def test_a_budget_buys_whole_pages() -> None:
    page = LAYOUT.page_bytes(3)
    assert pages_in_budget(4 * page + page - 1, LAYOUT, 3) == 4
    with pytest.raises(ValueError, match="hold no KV page"):
        pages_in_budget(page - 1, LAYOUT, 3)
    with pytest.raises(ValueError, match="pool of 0 pages"):
        new_pool(0)

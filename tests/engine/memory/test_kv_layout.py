"""Sizes of pages in both orders."""

from __future__ import annotations

import math

import pytest
import torch

from engine.memory.kv_layout import KVLayout


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("page_size", [16, 64])
def test_both_sides_of_a_page_hold_just_its_tokens(
    dtype: torch.dtype, is_interleaved: bool, page_size: int
) -> None:
    layout = KVLayout(3, 64, page_size, dtype, is_interleaved)
    for shape in (layout.k_page_shape, layout.v_page_shape):
        assert shape[0] == 3 and math.prod(shape) * dtype.itemsize == layout.side_bytes
    assert layout.page_bytes(30) == 2 * 30 * 3 * 64 * page_size * dtype.itemsize


def test_the_interleaved_order_is_that_of_the_kernels() -> None:
    layout = KVLayout(3, 64, 32, torch.bfloat16, is_interleaved=True)
    assert layout.k_page_shape == (3, 2, 32, 16, 2) and layout.v_page_shape == (3, 16, 64, 2)

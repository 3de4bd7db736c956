"""Tensors cut from large mappings: zeroed, aligned, apart, and alive as long as they are used."""

from __future__ import annotations

import gc
from itertools import pairwise

import torch

from engine.memory.host_arena import ALIGNMENT_BYTES, HUGE_PAGE_BYTES, HostArena


def test_tensors_are_zeroed_aligned_and_do_not_overlap() -> None:
    arena = HostArena(1 << 20)
    shapes = [((3, 5), torch.bfloat16), ((7,), torch.float32), ((1 << 19,), torch.bfloat16)]
    tensors = [arena.zeros(shape, dtype) for shape, dtype in shapes * 3]
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert all(begin % ALIGNMENT_BYTES == 0 for begin, _ in spans)
    assert tensors[0].data_ptr() % HUGE_PAGE_BYTES == 0
    for value, tensor in enumerate(tensors):
        assert (tensor == 0).all()
        tensor.fill_(value)
    assert all((tensor == value).all() for value, tensor in enumerate(tensors))


def test_a_tensor_may_be_larger_than_a_slab() -> None:
    big = HostArena(4096).zeros((1 << 20,), torch.float32)
    big.fill_(1.0)
    assert big.sum() == 1 << 20


def test_a_tensor_outlives_its_arena() -> None:
    kept = HostArena(1 << 20).zeros((1000,), torch.float32)
    gc.collect()
    kept.fill_(2.0)
    assert kept.sum() == 2000

"""Copies KV pages between the device's layout and the host's, in one launch for all layers.

A side is the keys, or the values, of one layer. On the device each side is a tensor of its own, a
page of it one run of words. On the host all sides lie in one block: a side has an offset, and its
pages and heads have strides, whatever the layout. Words are int32. The host's memory is registered
with the driver, so that the device reads and writes it at its own address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

WORD_BYTES = 4
BLOCK = 1024


@triton.jit
def copy_pages_kernel(
    side_addresses,  # (sides,) int64: where each side begins on the device
    host_address,  # int64
    host_offsets,  # (sides,) int64: words from the host's beginning to page 0, head 0 of the side
    device_pages,  # (n,) int64
    host_pages,  # (n,) int64
    host_page_stride,  # words
    host_head_stride,
    num_heads: tl.constexpr,
    head_words: tl.constexpr,
    to_host: tl.constexpr,
    block_words: tl.constexpr,
):
    """One program a page, a side, and a run of block_words of it."""
    copy, side, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    words: tl.constexpr = num_heads * head_words
    word = part * block_words + tl.arange(0, block_words)
    is_inside = word < words
    there = tl.load(device_pages + copy)
    here = tl.load(host_pages + copy)
    device = tl.load(side_addresses + side).to(tl.pointer_type(tl.int32)) + there * words + word
    host = tl.cast(host_address, tl.pointer_type(tl.int32))
    host += tl.load(host_offsets + side) + here * host_page_stride
    host += (word // head_words) * host_head_stride + word % head_words
    if to_host:
        tl.store(host, tl.load(device, mask=is_inside, other=0), mask=is_inside)
    else:
        tl.store(device, tl.load(host, mask=is_inside, other=0), mask=is_inside)


@dataclass(frozen=True, slots=True)
class HostPlaces:
    """How the host's sides lie, in words: where each begins, and the strides of all."""

    address: int
    offsets: tuple[int, ...]
    page_stride: int
    head_stride: int


class GpuPageCopier:
    """For one pair of pools. Sides are (pages, heads, head_bytes) of bytes on the device."""

    def __init__(self, sides: Sequence[torch.Tensor], host: HostPlaces) -> None:
        first = sides[0]
        _, self._num_heads, head_bytes = first.shape
        assert head_bytes % WORD_BYTES == 0, f"a head of {head_bytes} bytes"
        self._head_words = head_bytes // WORD_BYTES
        self._device, self._host = first.device, host
        self._sides = list(sides)  # keeps the memory that the addresses are of
        addresses = [side.data_ptr() for side in sides]
        self._addresses = torch.tensor(addresses, dtype=torch.int64, device=self._device)
        self._offsets = torch.tensor(host.offsets, dtype=torch.int64, device=self._device)
        is_cuda = self._device.type == "cuda"
        self._stream = torch.cuda.Stream(self._device) if is_cuda else None

    def move(
        self, device_pages: Sequence[int], host_pages: Sequence[int], *, to_host: bool
    ) -> None:
        """Copy page by page; done when it returns. On a stream of its own, which first waits for
        the steps that were launched before, and for none that are launched meanwhile."""
        if self._stream is None:
            self._launch(device_pages, host_pages, to_host=to_host)
            return
        self._stream.wait_stream(torch.cuda.default_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._launch(device_pages, host_pages, to_host=to_host)
        self._stream.synchronize()

    def _launch(
        self, device_pages: Sequence[int], host_pages: Sequence[int], *, to_host: bool
    ) -> None:
        there = torch.tensor(device_pages, dtype=torch.int64, device=self._device)
        here = torch.tensor(host_pages, dtype=torch.int64, device=self._device)
        words = self._num_heads * self._head_words
        grid = (len(there), len(self._sides), triton.cdiv(words, BLOCK))
        copy_pages_kernel[grid](
            self._addresses,
            self._host.address,
            self._offsets,
            there,
            here,
            self._host.page_stride,
            self._host.head_stride,
            num_heads=self._num_heads,
            head_words=self._head_words,
            to_host=to_host,
            block_words=BLOCK,
        )

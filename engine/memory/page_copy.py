"""Moves pages between a device pool and a host pool, whatever the layout of either.

One call moves a batch of pages, both sides of every layer. It reads and writes pages that nobody
else touches meanwhile; calls may come from two threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from engine.memory.host_pool import HostPool


class PageCopier:
    """Between a device pool and a host pool: numpy on a CPU, a Triton kernel on a GPU."""

    def __init__(self, device_sides: Sequence[torch.Tensor], host: HostPool) -> None:
        self._pool = host
        self._is_cpu = device_sides[0].device.type == "cpu"
        # numpy moves whole rows where torch moves numbers: twice as fast on a CPU.
        self._host = [
            host.side(layer, s).numpy() for layer in range(host.shape.num_layers) for s in (0, 1)
        ]
        self._device: list[Any] = []
        self._gpu: Any = None  # GpuPageCopier, which is not imported on a CPU
        if not self._is_cpu:
            host.register()
        self.bind(device_sides)

    def bind(self, device_sides: Sequence[torch.Tensor]) -> None:
        """Another device pool of the same shape; none was there for a while. Sides are keys and
        values of each layer in turn, as bytes (pages, num_heads, head_bytes)."""
        if self._is_cpu:
            self._device = [side.numpy() for side in device_sides]
            return
        from engine.kernels.gpu.page_copy import GpuPageCopier

        self._gpu = GpuPageCopier(device_sides, host_places(self._pool))

    def unbind(self) -> None:
        """Let go of the device pool: its memory is given up."""
        self._device, self._gpu = [], None

    def to_host(self, device_pages: Sequence[int], host_pages: Sequence[int]) -> None:
        """Copy device page i of the list to host page i; done when it returns."""
        if self._is_cpu:
            _move(self._device, device_pages, self._host, host_pages)
        else:
            self._gpu.move(device_pages, host_pages, to_host=True)

    def to_device(self, host_pages: Sequence[int], device_pages: Sequence[int]) -> None:
        """Copy host page i of the list to device page i; done when it returns."""
        if self._is_cpu:
            _move(self._host, host_pages, self._device, device_pages)
        else:
            self._gpu.move(device_pages, host_pages, to_host=False)


def _move(
    source: list[Any], from_pages: Sequence[int], target: list[Any], to_pages: Sequence[int]
) -> None:
    here, there = np.asarray(from_pages), np.asarray(to_pages)
    for side, other in zip(source, target, strict=True):
        other[there] = side[here]


def host_places(pool: HostPool) -> Any:
    """Where the sides of a host pool lie, for the GPU's kernel: a HostPlaces."""
    from engine.kernels.gpu.page_copy import WORD_BYTES, HostPlaces

    sides = [pool.side(layer, s) for layer in range(pool.shape.num_layers) for s in (0, 1)]
    page_stride, head_stride, _ = sides[0].stride()
    words = [side.storage_offset() for side in sides] + [page_stride, head_stride]
    assert all(word % WORD_BYTES == 0 for word in words), f"{pool.layout} splits words"
    offsets = tuple(side.storage_offset() // WORD_BYTES for side in sides)
    return HostPlaces(pool.address, offsets, page_stride // WORD_BYTES, head_stride // WORD_BYTES)

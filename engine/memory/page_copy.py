"""Moves pages between a device pool and a host pool, whatever the layout of either.

One call moves a batch of pages, side by side of every layer. Calls come from one thread at a time;
they read and write pages that nobody else touches meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from engine.memory.host_pool import HostPool


class PageCopier:
    """Between a device pool and a host pool."""

    def __init__(self, device_sides: Sequence[torch.Tensor], host: HostPool) -> None:
        self._is_cpu = device_sides[0].device.type == "cpu"
        layers = range(host.shape.num_layers)
        host_sides = [host.side(layer, s) for layer in layers for s in (0, 1)]
        # numpy moves whole rows where torch moves numbers: twice as fast on a CPU.
        self._host: list[Any] = [self._rows(side) for side in host_sides]
        self._device: list[Any] = []
        self.bind(device_sides)

    def bind(self, device_sides: Sequence[torch.Tensor]) -> None:
        """Another device pool of the same shape; none was there for a while. Sides are keys and
        values of each layer in turn, as bytes (pages, num_heads, head_bytes)."""
        self._device = [self._rows(side) for side in device_sides]

    def _rows(self, side: torch.Tensor) -> Any:  # Any: an array on a CPU, else a tensor
        return side.numpy() if self._is_cpu else side

    def to_host(self, device_pages: Sequence[int], host_pages: Sequence[int]) -> None:
        """Copy device page i of the list to host page i; done when it returns."""
        self._move(self._device, device_pages, self._host, host_pages)

    def to_device(self, host_pages: Sequence[int], device_pages: Sequence[int]) -> None:
        """Copy host page i of the list to device page i; done when it returns."""
        self._move(self._host, host_pages, self._device, device_pages)

    def _move(
        self,
        source: list[Any],
        from_pages: Sequence[int],
        target: list[Any],
        to_pages: Sequence[int],
    ) -> None:
        if self._is_cpu:
            here, there = np.asarray(from_pages), np.asarray(to_pages)
            for side, other in zip(source, target, strict=True):
                other[there] = side[here]
            return
        index = torch.tensor(from_pages, device=source[0].device)
        places = torch.tensor(to_pages, device=target[0].device)
        for side, other in zip(source, target, strict=True):
            other.index_copy_(0, places, side.index_select(0, index).to(other.device))

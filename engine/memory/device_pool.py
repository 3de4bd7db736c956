"""L1: the pages of keys and values on the device where the model runs.

Knows bytes and page ids. Which request owns a page, and when it is free, is the cache's business.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.memory.host_arena import HostArena
from engine.memory.kv_layout import KVLayout


class DevicePool:
    """All pages of all layers. A layer's K is (P, *k_page_shape), its V (P, *v_page_shape)."""

    def __init__(
        self, layout: KVLayout, num_layers: int, num_pages: int, device: torch.device
    ) -> None:
        """Allocate zeroed pages. On a CPU, memory is taken when a page is first written."""
        if num_pages <= 0:
            raise ValueError(f"a KV pool of {num_pages} pages")
        self.layout = layout
        self.num_layers = num_layers
        self.num_pages = num_pages
        arena = HostArena(num_pages * layout.page_bytes(num_layers))

        def zeros(page_shape: tuple[int, ...]) -> torch.Tensor:
            shape = (num_pages, *page_shape)
            if device.type == "cpu":
                return arena.zeros(shape, layout.dtype)
            return torch.zeros(shape, dtype=layout.dtype, device=device)

        self.k = [zeros(layout.k_page_shape) for _ in range(num_layers)]
        self.v = [zeros(layout.v_page_shape) for _ in range(num_layers)]

    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        return self.layout.page_bytes(self.num_layers)

    def layer_bytes(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """View a layer's K and V as bytes (P, side_bytes): what a lower tier copies to and fro."""
        k, v = self.k[layer], self.v[layer]
        return (
            k.view(self.num_pages, -1).view(torch.uint8),
            v.view(self.num_pages, -1).view(torch.uint8),
        )

    def sides(self) -> list[torch.Tensor]:
        """View keys, then values, of each layer in turn as bytes (P, num_kv_heads, head_bytes)."""
        heads = self.layout.num_kv_heads
        return [
            side.view(self.num_pages, heads, -1).view(torch.uint8)
            for both in zip(self.k, self.v, strict=True)
            for side in both
        ]

    def poison(self, pages: Sequence[int] | None = None) -> None:
        """Fill pages, or all of them, with NaN: whatever still reads them will show it."""
        for side in (self.k, self.v):
            for tensor in side:
                if pages is None:
                    tensor.fill_(float("nan"))
                else:
                    tensor[list(pages)] = float("nan")


def pages_in_budget(budget_bytes: int, layout: KVLayout, num_layers: int) -> int:
    """Return how many pages fit in `budget_bytes`. Raises ValueError when none does."""
    num_pages = budget_bytes // layout.page_bytes(num_layers)
    if num_pages <= 0:
        raise ValueError(
            f"{budget_bytes} bytes hold no KV page of {layout.page_bytes(num_layers)} bytes"
        )
    return num_pages

"""What the card can do, measured: the floors that everything else is shown beside."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from tests.bench.gpu.place import Site, median


@dataclass(frozen=True)
class Limits:
    """Bytes a second, read and written together; operations a second of bfloat16 products."""

    bytes_s: float
    flops_s: float

    def floor_s(self, size_bytes: float, flops: float = 0.0) -> float:
        """The least time for so much of both, if they overlap perfectly."""
        return max(size_bytes / self.bytes_s, flops / self.flops_s)


def measure(site: Site) -> Limits:
    """A copy far larger than any cache, and a large product of random numbers: of zeros it would
    be faster than anything real."""
    numbers = 1 << (16 if site.is_dry else 30)
    source = torch.ones(numbers, dtype=torch.bfloat16, device=site.device)
    target = torch.empty_like(source)
    copy_s = median(site.seconds(partial(target.copy_, source)))
    del source, target
    side = 64 if site.is_dry else 8192
    a, b = torch.randn(2, side, side, device=site.device).to(torch.bfloat16)
    product_s = median(site.seconds(partial(torch.matmul, a, b)))
    return Limits(4 * numbers / copy_s, 2 * side**3 / product_s)

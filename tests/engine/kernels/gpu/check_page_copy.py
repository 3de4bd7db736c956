"""The Triton page copy beside the one in numpy, for every layout of the host's pages."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.gpu.page_copy import GpuPageCopier
from engine.memory.host_pool import HostPool, PageShape
from engine.memory.page_copy import PageCopier, host_places
from engine.protocol import HostLayout
from tests.engine.kernels.gpu.places import DEVICE, IS_INTERPRETED

SIZES = [(1, 1, 8), (2, 3, 20), (3, 2, 1028), (2, 5, 2048)]  # layers, heads, bytes a head
DEVICE_PAGES, HOST_PAGES, OTHERS = [6, 0, 3], [8, 2, 5], [1, 2, 4, 5]


@pytest.mark.parametrize("layout", HostLayout)
@pytest.mark.parametrize(("layers", "heads", "head_bytes"), SIZES)
def test_pages_are_copied_as_the_reference_copies_them(
    layers: int, heads: int, head_bytes: int, layout: HostLayout
) -> None:
    torch.manual_seed(0)
    shape = PageShape(layers, heads, heads * head_bytes)
    sides = [
        torch.randint(0, 256, (7, heads, head_bytes), dtype=torch.uint8) for _ in range(2 * layers)
    ]
    ours, reference = HostPool(shape, 9, layout), HostPool(shape, 9, layout)
    if not IS_INTERPRETED:
        ours.register()
    there = [side.to(DEVICE) for side in sides]
    GpuPageCopier(there, host_places(ours)).move(DEVICE_PAGES, HOST_PAGES, to_host=True)
    PageCopier(sides, reference).to_host(DEVICE_PAGES, HOST_PAGES)
    assert torch.equal(ours.bytes, reference.bytes)
    back = [torch.zeros_like(side) for side in there]
    GpuPageCopier(back, host_places(ours)).move(DEVICE_PAGES, HOST_PAGES, to_host=False)
    for side, copy in zip(sides, back, strict=True):
        assert torch.equal(side[DEVICE_PAGES], copy[DEVICE_PAGES].cpu())
        assert not copy[OTHERS].any()
    if not IS_INTERPRETED:
        ours.unregister()

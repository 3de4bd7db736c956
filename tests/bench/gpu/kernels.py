"""Attention alone, beside the card's limits, in several tile sizes: what to choose from.

    python -m tests.bench.gpu.kernels [--reps 5] [--dry-run]

Decode beside the time to read its keys and values once; extend beside its arithmetic. The page size
is 16; the heads are Llama 3.1 8B's and SmolLM2's.
"""

from __future__ import annotations

import random
from functools import partial
from unittest import mock

import numpy as np
import torch
from triton.runtime.errors import OutOfResources

from engine.kernels.gpu import paged_decode
from engine.kernels.gpu.page_table import PageTable
from engine.kernels.gpu.paged_decode import attend_decodes, splits_for
from engine.kernels.gpu.paged_extend import Tiles, TileShape, attend_extends, tile_shape
from tests.bench.gpu.limits import Limits, measure
from tests.bench.gpu.place import Site, Table, median, start, write

PAGE = 16
HEADS = {"8b": (32, 8, 128), "135m": (9, 3, 64)}  # heads, kv heads, head_dim
TILES = [
    TileShape(rows=128, keys=64, warps=8, stages=3),
    TileShape(rows=128, keys=128, warps=8, stages=2),
    TileShape(rows=128, keys=64, warps=4, stages=3),
    TileShape(rows=64, keys=64, warps=4, stages=3),
    TileShape(rows=64, keys=128, warps=4, stages=2),
]
RNG = random.Random(1)


def on_device(site: Site, numbers: list[int] | np.ndarray) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=site.device)


def pools(site: Site, kv_heads: int, dim: int, num_pages: int) -> torch.Tensor:
    """Keys and values (2, P, Hkv, S, D)."""
    shape = (2, num_pages, kv_heads, PAGE, dim)
    dtype = torch.float32 if site.is_dry else torch.bfloat16
    return torch.randn(shape, device=site.device, dtype=dtype)


def decode_rows(site: Site, limits: Limits, name: str, table: Table) -> None:
    heads, kv_heads, dim = HEADS[name]
    processors = 4 if site.is_dry else torch.cuda.get_device_properties(0).multi_processor_count
    for count, context in [(2, 21)] if site.is_dry else [(1, 512), (1, 16_384), (32, 4096),
                                                         (128, 512), (128, 4096)]:  # fmt: skip
        width = -(-context // PAGE)
        k, v = pools(site, kv_heads, dim, count * width)
        pages = RNG.sample(range(count * width), count * width)
        placed = PageTable(
            on_device(site, [context - 1] * count),
            on_device(site, [width * at for at in range(count)]),
            on_device(site, pages),
        )
        q = torch.randn(count, heads, dim, device=site.device, dtype=k.dtype)
        rows, out = on_device(site, list(range(count))), torch.empty_like(q)
        floor = limits.floor_s(2 * count * context * kv_heads * dim * k.element_size())
        usual = splits_for(count, kv_heads, context, processors)
        for block in (32,) if site.is_dry else (32, 64, 128):
            for splits in sorted({1, usual, 2 * usual}):
                with mock.patch.object(paged_decode, "block_tokens_for", lambda _, b=block: b):
                    call = partial(attend_decodes, q, k, v, placed, rows, out, splits)
                    took = tried(site, call)
                table.add(
                    heads=name, requests=count, context=context, block_tokens=block,
                    splits=splits, is_chosen=splits == usual and block == 64,
                    us=took * 1e6, percent_of_limit=100 * floor / took,
                )  # fmt: skip


def extend_rows(site: Site, limits: Limits, name: str, table: Table) -> None:
    heads, kv_heads, dim = HEADS[name]
    for new in (19,) if site.is_dry else (512, 2048, 8192):
        width = -(-new // PAGE)
        k, v = pools(site, kv_heads, dim, width)
        placed = PageTable(
            on_device(site, np.arange(new)),
            torch.zeros(new, dtype=torch.int32, device=site.device),
            on_device(site, RNG.sample(range(width), width)),
        )
        q = torch.randn(new, heads, dim, device=site.device, dtype=k.dtype)
        out, flops = torch.empty_like(q), 2 * heads * dim * new * new
        for shape in [TileShape(16, 16, 4, 1)] if site.is_dry else TILES:
            first = np.arange(0, new, shape.rows)[::-1].copy()  # the longest context first
            stops = np.minimum(first + shape.rows, new)
            tiles = Tiles(on_device(site, first), on_device(site, stops), shape)
            took = tried(site, partial(attend_extends, q, k, v, placed, tiles, out))
            table.add(
                heads=name, tokens=new, rows=shape.rows, keys=shape.keys, warps=shape.warps,
                stages=shape.stages, is_chosen=shape == tile_shape(k.dtype, dim),
                us=took * 1e6, tflop_s=flops / took / 1e12,
                percent_of_limit=100 * limits.floor_s(0, flops) / took,
            )  # fmt: skip


def tried(site: Site, call: partial[None]) -> float:
    """Seconds a launch; NaN for a size that the card has no room for."""
    try:
        return median(site.kernel_seconds(call))
    except OutOfResources:
        return float("nan")


def main() -> None:
    """Decode and extend of each model's heads."""
    site = start(__doc__)
    limits = measure(site)
    decode, extend = Table("decode attention"), Table("extend attention")
    for name in HEADS if not site.is_dry else ["135m"]:
        decode_rows(site, limits, name, decode)
        extend_rows(site, limits, name, extend)
        facts = {"copy_gb_s": limits.bytes_s / 1e9, "product_tflop_s": limits.flops_s / 1e12}
        write(site, "kernels", [decode, extend], limits=facts)


if __name__ == "__main__":
    main()

"""Pages between the card and the host's pool, in each layout, beside plain copies of pinned memory.

    python -m tests.bench.gpu.hicache [--reps 5] [--dry-run]

Through the very classes that the engine uses: a copy is one launch over the pages of all layers and
is done when the call returns.
"""

from __future__ import annotations

import random
from functools import partial

import torch

from engine.memory.device_pool import DevicePool
from engine.memory.host_pool import HostPool, PageShape
from engine.memory.kv_layout import KVLayout
from engine.memory.page_copy import PageCopier
from engine.protocol import HostLayout
from tests.bench.gpu.models import config_of
from tests.bench.gpu.place import Site, Table, median, spread, start, write

PAGE = 16
RNG = random.Random(1)


def plain_rates(site: Site, size_bytes: int, table: Table) -> dict[str, float]:
    """Bytes a second that the bus does, each way: one run of pinned memory."""
    host = torch.ones(size_bytes, dtype=torch.uint8, pin_memory=not site.is_dry)
    there = torch.empty(size_bytes, dtype=torch.uint8, device=site.device)
    rates = {}
    for name, call in (
        ("to device", partial(there.copy_, host, non_blocking=True)),
        ("to host", partial(host.copy_, there, non_blocking=True)),
    ):
        took = site.seconds(call)
        rates[name] = size_bytes / median(took)
        table.add(copy=name, mb=size_bytes / 1e6, gb_s=rates[name] / 1e9, spread_s=spread(took))
    return rates


def page_rows(site: Site, shape: str, num_pages: int, limits: Table, table: Table) -> None:
    config = config_of(shape)
    layout = KVLayout(
        config.num_kv_heads, config.head_dim, PAGE, torch.bfloat16, is_interleaved=False
    )
    pool = DevicePool(layout, config.num_layers, 2 * num_pages, site.device)
    size = num_pages * pool.page_bytes()
    rates = plain_rates(site, size, limits)
    page = PageShape(config.num_layers, config.num_kv_heads, layout.side_bytes)
    there, here = (RNG.sample(range(2 * num_pages), num_pages) for _ in range(2))
    for kind in HostLayout:
        host = HostPool(page, 2 * num_pages, kind)
        host.bytes.zero_()  # or the first copy would also ask the system for the memory
        copier = PageCopier(pool.sides(), host)
        for name, call in (
            ("to host", partial(copier.to_host, there, here)),
            ("to device", partial(copier.to_device, here, there)),
        ):
            took = site.seconds(call)
            rate = size / median(took)
            table.add(
                model=shape, layout=str(kind), copy=name, pages=num_pages, gb_s=rate / 1e9,
                percent_of_limit=100 * rate / rates[name], spread_s=spread(took),
            )  # fmt: skip
        if not site.is_dry:
            host.unregister()


def main() -> None:
    """A model with small pages, and one with large ones; few pages and many."""
    site = start(__doc__)
    limits, table = Table("pinned memory, one run"), Table("pages")
    cases = (
        [("tiny", 3)] if site.is_dry else [("135m", 64), ("135m", 1024), ("8b", 64), ("8b", 512)]
    )
    for shape, num_pages in cases:
        page_rows(site, shape, num_pages, limits, table)
        write(site, "hicache", [limits, table])


if __name__ == "__main__":
    main()

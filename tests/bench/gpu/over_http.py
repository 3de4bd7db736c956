"""The engine over HTTP on the card, bfloat16: prefill, first token cold and hit, decode.

    python -m tests.bench.gpu.over_http [--reps 5] [--dry-run]

The rows of tests/bench/engine.py, longer prompts and more requests at once. Weights by chance where
the packaged model is not installed: speed is the same.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from functools import partial

import httpx

from tests.bench.gpu.place import Site, Table, median, spread, start, write
from tests.bench.gpu.served import model_folder, served

NEW_TOKENS = 64
RNG = random.Random(1)


def prompt(length: int) -> list[int]:
    """Random tokens: nothing is cached by accident."""
    return [RNG.randrange(1000, 40_000) for _ in range(length)]


class Client:
    """All of a row's requests at once, each on a connection of its own."""

    def __init__(self, base: str) -> None:
        self._url = f"{base}/generate"

    def seconds(self, prompts: list[list[int]], count: int) -> tuple[float, list[int]]:
        """Until every prompt has `count` tokens; and how many tokens of each were cached."""

        async def run() -> tuple[float, list[int]]:
            limits = httpx.Limits(max_connections=len(prompts))
            async with httpx.AsyncClient(timeout=120, limits=limits) as client:
                begun = time.perf_counter()
                answers = await asyncio.gather(*(self._one(client, ids, count) for ids in prompts))
                took = time.perf_counter() - begun
            found = [answer.json() for answer in answers]
            assert all(len(each["output_ids"]) == count for each in found), found[0]
            return took, [each["meta_info"]["cached_tokens"] for each in found]

        return asyncio.run(run())

    async def _one(self, client: httpx.AsyncClient, ids: list[int], count: int) -> httpx.Response:
        sampling = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
        return await client.post(self._url, json={"input_ids": ids, "sampling_params": sampling})

    def cold(self, length: int) -> float:
        """The first token of a prompt that was never seen."""
        return self.seconds([prompt(length)], 1)[0]

    def hit(self, length: int) -> float:
        """The first token behind a prefix that was just computed, and 8 more."""
        prefix = prompt(length)
        self.seconds([prefix], 1)
        took, cached = self.seconds([prefix + prompt(8)], 1)
        assert cached[0] >= length - 16, cached
        return took

    def decode(self, batch: int) -> float:
        """What more tokens of each take, behind the first."""
        long, _ = self.seconds([prompt(16) for _ in range(batch)], NEW_TOKENS + 1)
        short, _ = self.seconds([prompt(16) for _ in range(batch)], 1)
        return long - short


def measure(site: Site, client: Client, shape: str, table: Table) -> None:
    """Every row; the first turn of each warms up, and records the graph of its batch size."""

    def turns(call: Callable[[], float]) -> list[float]:
        return [call() for _ in range(site.reps + 1)][1:]

    for length in (64,) if site.is_dry else (512, 2048, 8192):
        took = turns(partial(client.cold, length))
        table.add(
            model=shape, row=f"first token, cold, {length}", ms=median(took) * 1e3,
            prefill_tok_s=length / median(took), spread_s=spread(took),
        )  # fmt: skip
    for prefix in (64,) if site.is_dry else (512, 8192):
        took = turns(partial(client.hit, prefix))
        name = f"first token, hit {prefix} + 8"
        table.add(model=shape, row=name, ms=median(took) * 1e3, spread_s=spread(took))
    for batch in (1, 2) if site.is_dry else (1, 8, 32, 128):
        took = turns(partial(client.decode, batch))
        table.add(
            model=shape, row=f"decode b{batch}", tok_s=batch * NEW_TOKENS / median(took),
            ms_a_token=median(took) / NEW_TOKENS * 1e3, spread_s=spread(took),
        )  # fmt: skip


def main() -> None:
    """Each shape on an engine of its own."""
    site = start(__doc__)
    table = Table("over HTTP")
    for shape in ("tiny",) if site.is_dry else ("135m", "1b"):
        engine = served(site, model_folder(site, shape, shape, 0))
        try:
            engine.start()
            measure(site, Client(engine.base), shape, table)
        finally:
            engine.stop()
            log = engine.log()
            (site.work / f"engine-{shape}.log").write_text(log[-100_000:])
        ready = [line for line in log.splitlines() if "rank ready" in line]
        graphs = log.count("'decode recorded'")
        write(site, "http", [table], rank_ready=ready, graphs=graphs, load=os.getloadavg()[0])


if __name__ == "__main__":
    main()

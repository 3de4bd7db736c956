"""The engine over HTTP on the card, bfloat16: prefill, first token cold and hit, decode.

    python -m tests.bench.gpu.over_http [--reps 5] [--dry-run]

The rows of tests/bench/engine.py, longer prompts and more requests at once. Weights by chance where
the packaged model is not installed: speed is the same.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import httpx

from tests.bench.engine import NEW_TOKENS, Ours, prompt
from tests.bench.gpu.place import Site, Table, median, spread, start, write
from tests.bench.gpu.served import model_folder, served
from tests.fakes.engine_process import EngineProcess


class OnCard(Ours):
    """The same questions to an engine that was started elsewhere."""

    def __init__(self, engine: EngineProcess) -> None:
        self.engine = engine

    def _all(self, prompts: list[list[int]], count: int) -> float:
        """As there, with more connections than the 100 of that bench."""

        async def run() -> float:
            limits = httpx.Limits(max_connections=len(prompts))
            async with httpx.AsyncClient(timeout=120, limits=limits) as client:
                start_s = time.perf_counter()
                answers = await asyncio.gather(*(self._one(client, ids, count) for ids in prompts))
                took = time.perf_counter() - start_s
            assert all(len(a.json()["output_ids"]) == count for a in answers)
            return took

        return asyncio.run(run())

    async def _one(self, client: httpx.AsyncClient, ids: list[int], count: int) -> httpx.Response:
        sampling = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": ids, "sampling_params": sampling}
        return await client.post(f"{self.engine.base}/generate", json=body)


def measure(site: Site, side: OnCard, shape: str, table: Table) -> None:
    """Every row; the first turn of each warms up, and records the graph of its batch size."""

    def rows(call: Callable[[], float]) -> list[float]:
        return [call() for _ in range(site.reps + 1)][1:]

    for length in (64,) if site.is_dry else (512, 2048, 8192):
        took = rows(lambda n=length: side.first_token(prompt(n)))
        table.add(
            model=shape, row=f"first token, cold, {length}", ms=median(took) * 1e3,
            prefill_tok_s=length / median(took), spread_s=spread(took),
        )  # fmt: skip
    for prefix in (64,) if site.is_dry else (512, 8192):
        took = rows(lambda n=prefix: side.first_token_hit(prompt(n), prompt(8)))
        name = f"first token, hit {prefix} + 8"
        table.add(model=shape, row=name, ms=median(took) * 1e3, spread_s=spread(took))
    for batch in (1, 2) if site.is_dry else (1, 8, 32, 128):
        took = rows(lambda n=batch: side.decode([prompt(16) for _ in range(n)], NEW_TOKENS))
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
            measure(site, OnCard(engine), shape, table)
            lines = [line for line in engine.log().splitlines() if "rank ready" in line]
            log = engine.log()
        finally:
            engine.stop()
            (site.work / f"engine-{shape}.log").write_text(engine.log()[-100_000:])
        write(
            site, "http", [table], rank_ready=lines, graphs=log.count("'decode recorded'"),
            load=os.getloadavg()[0],
        )  # fmt: skip


if __name__ == "__main__":
    main()

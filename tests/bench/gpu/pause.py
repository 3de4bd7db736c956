"""The pause of a weight update on the card, with and without `torch_empty_cache`, under load.

    python -m tests.bench.gpu.pause [--reps 3] [--dry-run]

The measures of tests/bench/weights.py: eight streaming clients, updates to and fro between two
checkpoints, from disk and from tensors. A request that is cut short fails the bench.
"""

from __future__ import annotations

import asyncio
import shutil

from tests.bench.gpu.place import Site, Table, spread, start, write
from tests.bench.gpu.served import model_folder, served
from tests.bench.weights import ROWS, updates


def measure(site: Site, shape: str, table: Table) -> None:
    folders = [model_folder(site, shape, f"pause-{shape}-{seed}", seed) for seed in (1, 2)]
    engine = served(site, folders[0], weights_root=site.work)
    try:
        engine.start()
        size = engine.client.get("/model_info").json()["weights"]["bytes"]
        found = asyncio.run(updates(engine, folders, site.reps))
    finally:
        engine.stop()
        (site.work / f"engine-pause-{shape}.log").write_text(engine.log()[-100_000:])
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    for kind, made in found.items():
        for name, _, value in ROWS:
            seconds = [value(one) for one in made]
            table.add(model=shape, mb=size / 1e6, kind=kind, row=name, seconds=spread(seconds))


def main() -> None:
    """A model of 2.5 GB: of a smaller one, there is nothing to see."""
    site = start(__doc__)
    table = Table("weight update")
    measure(site, "tiny" if site.is_dry else "1b", table)
    write(site, "pause", [table])


if __name__ == "__main__":
    main()

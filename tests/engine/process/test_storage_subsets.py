"""An attach that fails on some ranks, for every set of ranks at one to four of them: all stay as
they were, each rank says why, and nobody who is served notices."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from tests.engine.process.storage_client import attach, detach, generate, status, until_idle
from tests.engine.weights.checkpoints import write
from tests.fakes.engine_process import EngineProcess

pytestmark = pytest.mark.process

STREAM_TOKENS = 150


@pytest.mark.parametrize(
    "dp_size",  # of two ranks, each alone and both are sets as well
    [2, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 3, 4))],
)
def test_any_set_of_failing_ranks_leaves_all_as_they_were(
    dp_size: int,
    smollm2_dir: Path,
    cpu_ext_dir: Path,
    tmp_path: Path,
) -> None:
    model = write(tmp_path / "model", 0, smollm2_dir)
    engine = EngineProcess(model, cpu_ext_dir, dp_size=dp_size, max_total_tokens=4096)
    engine.command.append("--enable-hierarchical-cache")
    try:
        engine.start()
        quiet = generate(engine, [3, 1, 4], STREAM_TOKENS)["output_ids"]
        until_idle(engine)
        blocked = engine.dir / "blocked"
        blocked.write_text("a file where a folder should be")
        bad = [
            {"file_storage_path": str(blocked)},
            {"file_storage_path": str(blocked / "below")},
        ]
        ranks = [str(rank) for rank in range(dp_size)]
        subsets = [
            failing
            for count in range(1, dp_size + 1)
            for failing in itertools.combinations(ranks, count)
        ]
        outputs: list[list[int]] = []
        for number, failing in enumerate(subsets):
            stream = threading.Thread(
                target=lambda: outputs.append(
                    generate(engine, [3, 1, 4], STREAM_TOKENS)["output_ids"]
                )
            )
            stream.start()
            config = {"prefetch_threshold": 16, "file_storage_path": str(engine.dir / "store")}
            overrides = {rank: bad[(number + int(rank)) % 2] for rank in failing}
            refused = attach(engine, "file", config, rank_configs=overrides)
            assert refused.status_code == 400, refused.text
            assert [f"rank {rank}: " in refused.text for rank in ranks] == [
                rank in failing for rank in ranks
            ], refused.text
            found = status(engine)
            assert found["hicache_storage_backend"] is None
            assert [rank["attached"] for rank in found["ranks"]] == [False] * dp_size
            assert all(rank["proven"] for rank in found["ranks"])
            stream.join()
        assert outputs == [quiet] * len(subsets)
        until_idle(engine)
        done = attach(engine, "file", config)
        assert done.status_code == 200, done.text
        assert [rank["attached"] for rank in status(engine)["ranks"]] == [True] * dp_size
        assert detach(engine).status_code == 200
    finally:
        engine.stop()

"""Real runners, one of each kind for the whole session: loading takes a second."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from engine.runner.model_runner import ModelRunner

NUM_PAGES = 640
RunnerOf = Callable[[str, str], ModelRunner]


@pytest.fixture(scope="session")
def runner_of(smollm2_dir: Path, cpu_ext_dir: Path) -> RunnerOf:
    """Return the runner of a (kernels, dtype): kernels "cpu" or "torch"."""

    @cache
    def make(kernels: str, dtype: str) -> ModelRunner:
        runner = ModelRunner(
            smollm2_dir,
            dtype=dtype,
            num_pages=NUM_PAGES,
            threads=1,
            ext_dir=cpu_ext_dir if kernels == "cpu" else None,
            seed=1,
        )
        if runner.kernels != kernels:
            pytest.skip("this machine cannot build or run the compiled kernels")
        return runner

    return make

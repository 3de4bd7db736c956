"""A mixed load, as a service sees it: requests that arrive by chance, prefixes that some share.

Arrivals are Poisson; a third of a group's prompts have been seen before. What counts is how long
until the first piece, how long between pieces, and how many requests a second were served well.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from dataclasses import dataclass, field

from tests.bench.completions_client import Asked, Told, complete
from tests.bench.contenders import Contender
from tests.bench.figures import percentile

REQUESTS = 200
RATE_PER_S = 3.0
GROUPS, PREFIX_TOKENS = 8, 192
OWN_TOKENS, NEW_TOKENS = (16, 256), (16, 128)
WELL_FIRST_S, WELL_GAP_S = 1.0, 0.05  # served well: first piece, and the mean gap


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request and when it comes, from the start of the load."""

    at_s: float
    asked: Asked


def workload(seed: int, requests: int = REQUESTS) -> list[Arrival]:
    """The same for all engines; another seed shares no prefix with it."""
    rng = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [rng.randrange(1000, 40_000) for _ in range(count)]

    prefixes = [ids(PREFIX_TOKENS) for _ in range(GROUPS)]
    arrivals, at = [], 0.0
    for _ in range(requests):
        at += rng.expovariate(RATE_PER_S)
        own, new = rng.randint(*OWN_TOKENS), rng.randint(*NEW_TOKENS)
        prompt = [*rng.choice(prefixes), *ids(own)]
        arrivals.append(Arrival(at, Asked(prompt, new, is_streamed=True)))
    return arrivals


@dataclass
class Served:
    """What one engine made of it, over all turns."""

    first_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    goodput: list[float] = field(default_factory=list)  # requests a second, a turn
    tokens_per_s: list[float] = field(default_factory=list)

    def add(self, told: list[Told]) -> None:
        """One turn."""
        self.first_s += [one.first_s for one in told]
        self.gaps_s += [gap for one in told for gap in one.gaps_s]
        took = max(one.ended_at for one in told) - min(one.sent_at for one in told)
        self.goodput.append(sum(map(_is_well, told)) / took)
        self.tokens_per_s.append(sum(one.num_tokens for one in told) / took)

    def rows(self) -> dict[str, float]:
        """By name; ms, but for the rates."""
        return {
            "first piece p50, ms": percentile(self.first_s, 0.5) * 1e3,
            "first piece p99, ms": percentile(self.first_s, 0.99) * 1e3,
            "gap between pieces p50, ms": percentile(self.gaps_s, 0.5) * 1e3,
            "gap between pieces p99, ms": percentile(self.gaps_s, 0.99) * 1e3,
            "served well, requests/s": statistics.median(self.goodput),
            "tokens/s": statistics.median(self.tokens_per_s),
        }


def _is_well(told: Told) -> bool:
    gaps = told.gaps_s
    return told.first_s <= WELL_FIRST_S and (not gaps or statistics.mean(gaps) <= WELL_GAP_S)


async def serve(contender: Contender, arrivals: list[Arrival]) -> list[Told]:
    """Send each when it is its time; waits for all answers."""

    async def one(arrival: Arrival) -> Told:
        await asyncio.sleep(arrival.at_s)
        return await complete(contender.port, contender.model, arrival.asked)

    return await asyncio.gather(*map(one, arrivals))

"""Which rank a request goes to: the one that has most of its prefix, unless that one is overloaded.

Keeps, per rank, the page chains it was sent (a guess of what its cache holds: it may have evicted
them, which costs a recomputation and nothing else). Pure; knows ranks by number.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

_MAX_PAGES_PER_RANK = 200_000
# A rank is overloaded when it has this many more tokens in flight than the idlest one.
_OVERLOAD_TOKENS = 4096


def page_chain(token_ids: Sequence[int], page_size: int, namespace: str) -> list[int]:
    """One hash a whole page, each over all tokens up to its end."""
    chain: list[int] = []
    last = hash(namespace)
    data = array("I", token_ids).tobytes()
    step = page_size * 4
    for offset in range(0, len(data) - step + 1, step):
        last = hash((last, data[offset : offset + step]))
        chain.append(last)
    return chain


class DPRouter:
    """Loads and known prefixes of each rank."""

    def __init__(self, dp_size: int) -> None:
        self._known: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(dp_size)]
        self._tokens = [0] * dp_size
        self._requests = [0] * dp_size

    def choose(self, chain: Sequence[int], ranks: Iterable[int]) -> int | None:
        """A rank of `ranks`, None when there is none."""
        candidates = list(ranks)
        if not candidates:
            return None
        idlest = min(self._tokens[rank] for rank in candidates)
        fit = [r for r in candidates if self._tokens[r] - idlest < _OVERLOAD_TOKENS]
        return max(fit, key=lambda rank: (self.hit_pages(chain, rank), *self._idleness(rank)))

    def hit_pages(self, chain: Sequence[int], rank: int) -> int:
        """Leading pages that this rank was sent before."""
        known = self._known[rank]
        for count, page in enumerate(chain):
            if page not in known:
                return count
        return len(chain)

    def load_tokens(self, rank: int) -> int:
        """Tokens in flight on a rank."""
        return self._tokens[rank]

    def num_requests(self, rank: int) -> int:
        """Requests in flight on a rank."""
        return self._requests[rank]

    def sent(self, chain: Sequence[int], rank: int, tokens: int) -> None:
        """A request went to this rank."""
        self._tokens[rank] += tokens
        self._requests[rank] += 1
        known = self._known[rank]
        for page in chain:
            known[page] = None
            known.move_to_end(page)
        while len(known) > _MAX_PAGES_PER_RANK:
            known.popitem(last=False)

    def ended(self, rank: int, tokens: int) -> None:
        """A request of this rank is over."""
        self._tokens[rank] -= tokens
        self._requests[rank] -= 1

    def forget(self, rank: int) -> None:
        """The rank's cache is empty: flushed, or a new process."""
        self._known[rank].clear()

    def _idleness(self, rank: int) -> tuple[int, int, int]:
        return (-self._tokens[rank], -self._requests[rank], -rank)

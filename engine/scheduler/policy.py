"""Who is admitted, and who gives way when pages run out. Pure decisions on counts.

First come, first served: the head of the queue that does not fit makes the rest wait, so that a
long prompt is not starved by short ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.scheduler.req import Req

_RATIO_START = 0.3
_RATIO_FLOOR = 0.1
_RATIO_STEP = 0.3
_RATIO_DECAY = 0.002
_ESTIMATE_CAP_TOKENS = 4096


class OutputEstimate:
    """Share of its allowed output that a request is expected to use; learns from retractions."""

    def __init__(self) -> None:
        self.ratio = _RATIO_START

    def retracted(self) -> None:
        """Memory ran out: expect more."""
        self.ratio = min(1.0, self.ratio + _RATIO_STEP)

    def stepped(self) -> None:
        """A step went well: expect a little less."""
        self.ratio = max(_RATIO_FLOOR, self.ratio - _RATIO_DECAY)

    def reserve_pages(self, running: Sequence[Req], page_size: int) -> int:
        """Pages that running requests are expected to need yet, at least one each."""
        total = 0
        for req in running:
            expected = min(req.max_remaining_output, _ESTIMATE_CAP_TOKENS) * self.ratio
            total += max(1, -(-int(expected) // page_size))
        return total


def choose_victim(running: Sequence[Req]) -> Req:
    """The request to retract: fewest outputs to recompute, then the longest prompt to free."""
    return min(running, key=lambda req: (req.num_output, -req.num_prompt))

"""What the scheduler asks of a runner. `ModelRunner` is the real one, tests have a scripted one."""

from __future__ import annotations

from typing import Any, Protocol

from engine.cache.mover import Copier
from engine.memory.host_pool import HostPool
from engine.models.forward_batch import ForwardBatch, PartResult
from engine.protocol import HostLayout, WeightsView


class Runner(Protocol):
    """Holds a model and its paged KV pool; all calls come from one thread."""

    page_size: int  # tokens in a page
    num_pages: int  # pages in the device pool
    context_len: int  # longest request in tokens, prompt and output together
    vocab_size: int
    eos_ids: frozenset[int]
    weights: WeightsView  # what it computes with
    num_empty_cache: int  # times that cached device memory was given back

    def forward(self, batch: ForwardBatch) -> list[PartResult]:
        """Run one step; one result a part, in order. Raises NonFiniteLogitsError."""

    def swap(self, loaded: Any, weights: WeightsView) -> Any:
        """Compute with weights that were loaded beside; returns those before. Any: the runner's own
        form of a model, which nobody else looks into. None stands for no weights."""

    @property
    def has_kv(self) -> bool:
        """The pages have memory."""

    def release_kv(self) -> None:
        """Give the pages' memory up. No page is in use."""

    def resume_kv(self) -> None:
        """Take memory for the pages again; they are empty."""

    def host_tier(self, num_pages: int, layout: HostLayout) -> tuple[HostPool, Copier]:
        """A host pool for pages of this runner's, and what copies between the two."""

    def clear_kv(self) -> None:
        """Forget all pages' contents (a debugging aid may poison them). No page is in use."""

    def poison_pages(self, pages: list[int]) -> None:
        """Tests: make any later read of these pages give NaN, until they are written again."""

    def empty_cache(self) -> None:
        """Give cached device memory back to the driver; nothing to do on a CPU."""

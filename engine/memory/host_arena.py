"""Host memory in huge pages, for what every step reads from end to end: weights and KV.

Linux gives huge pages only on request on most machines, and torch does not ask. With them, steps of
1 to 8 requests take 5 to 15 % less (tests/bench/model_step.py): fewer address translations miss.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress

import torch

HUGE_PAGE_BYTES = 2 << 20
ALIGNMENT_BYTES = 64


class HostArena:
    """Cuts tensors out of large mappings, which live as long as any tensor of theirs."""

    def __init__(self, slab_bytes: int) -> None:
        """Map `slab_bytes` at a time, or what a larger tensor needs."""
        self._slab_bytes = slab_bytes
        self._slab = torch.empty(0, dtype=torch.uint8)
        self._used_bytes = 0

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a zeroed tensor. Memory is taken when it is first written, a huge page a time."""
        size_bytes = math.prod(shape) * int(dtype.itemsize)
        if self._used_bytes + size_bytes > len(self._slab):
            self._slab = _map(max(self._slab_bytes, size_bytes))
            self._used_bytes = 0
        end = self._used_bytes + size_bytes
        cut = self._slab[self._used_bytes : end].view(dtype).view(*shape)
        self._used_bytes = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return cut


def _map(size_bytes: int) -> torch.Tensor:
    """Map zeroed bytes from a huge page's border on. Raises MemoryError or OSError."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    mapping = mmap.mmap(-1, size_bytes + HUGE_PAGE_BYTES, flags=private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them: small pages serve, a little slower
            mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(mapping, dtype=torch.uint8)
    return whole[-whole.data_ptr() % HUGE_PAGE_BYTES :][:size_bytes]

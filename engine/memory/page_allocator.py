"""Which pages of a device pool are free. Knows page numbers, not bytes.

Pages are handed out lowest-first at start and then in the order they came back, so freshly freed
pages rest as long as possible: a stale read of one is then more likely to be noticed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class OutOfPagesError(RuntimeError):
    """More pages were asked for than are free; callers check first."""


class PageAllocator:
    """Free list of pages 0..num_pages-1."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free: deque[int] = deque()
        self._is_free = bytearray()
        self.reset()

    @property
    def num_free(self) -> int:
        """Pages that nobody owns."""
        return len(self._free)

    def reset(self) -> None:
        """All pages are free again."""
        self._free = deque(range(self.num_pages))
        self._is_free = bytearray(b"\1" * self.num_pages)

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages. Raises OutOfPagesError, taking none."""
        if count > len(self._free):
            raise OutOfPagesError(f"{count} pages wanted, {len(self._free)} free")
        pages = [self._free.popleft() for _ in range(count)]
        for page in pages:
            self._is_free[page] = 0
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Give pages back. A page freed twice is a bug of ours and raises AssertionError."""
        for page in pages:
            assert not self._is_free[page], f"page {page} freed twice"
            self._is_free[page] = 1
            self._free.append(page)

"""The pages of one rank: allocator and radix tree together, with the account that must balance.

free + evictable + locked + held = total, where locked pages belong to the tree and are in use, held
pages belong to requests alone. Knows requests only as page tables (`Pages`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.cache.node import Node
from engine.cache.radix_cache import RadixCache
from engine.memory.page_allocator import PageAllocator
from engine.protocol import KVUsage


class Pages:
    """One request's page table. The first `num_tree` pages are the tree's, the rest its own."""

    __slots__ = ("namespace", "node", "num_tree", "path", "table")

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.table: list[int] = []
        self.num_tree = 0
        self.node: Node | None = None
        self.path: Sequence[Node] = ()  # what was found, until `used`


class KVCache:
    """All page traffic of one rank goes through here."""

    def __init__(
        self,
        *,
        num_pages: int,
        page_size: int,
        on_free: Callable[[list[int]], None] | None = None,
    ) -> None:
        self.page_size = page_size
        self._allocator = PageAllocator(num_pages)
        self.tree = RadixCache(page_size)
        self._num_held = 0
        self._on_free = on_free
        self.on_used: Callable[[Sequence[Node]], None] = lambda _: None

    # ---- a request's life --------------------------------------------------------------------

    def begin(self, token_ids: Sequence[int], namespace: str, limit_tokens: int) -> Pages:
        """A page table that starts with the longest cached prefix, locked, of at most the limit."""
        pages = Pages(namespace)
        whole = limit_tokens // self.page_size * self.page_size
        match = self.tree.match(token_ids[:whole], namespace)
        pages.path = match.path
        if match.pages:
            self.tree.lock(match.node)
            pages.node, pages.table = match.node, list(match.pages)
            pages.num_tree = len(match.pages)
        return pages

    def used(self, pages: Pages) -> None:
        """The request is admitted: what it found was of use."""
        for node in pages.path:
            node.hits += 1
        self.on_used(pages.path)
        pages.path = ()

    def num_available(self) -> int:
        """Pages that `grow` could hand out now."""
        return self._allocator.num_free + self.tree.num_evictable

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-num_tokens // self.page_size)

    def missing(self, pages: Pages, num_tokens: int) -> int:
        """Pages that the table lacks to hold `num_tokens`."""
        return max(0, self.pages_for(num_tokens) - len(pages.table))

    def grow(self, pages: Pages, num_tokens: int) -> bool:
        """Extend the table to hold `num_tokens`, evicting if need be. False changes nothing."""
        count = self.missing(pages, num_tokens)
        if count == 0:
            return True
        taken = self.take(count)
        if taken is None:
            return False
        pages.table += taken
        return True

    def take(self, count: int) -> list[int] | None:
        """`count` pages that are in no table yet, evicting if need be. None changes nothing."""
        if count > self.num_available():
            return None
        short = count - self._allocator.num_free
        if short > 0:
            self._give_back(self.tree.evict(short))
        self._num_held += count
        return self._allocator.allocate(count)

    def give(self, pages: list[int], *, to_pool: bool) -> None:
        """Pages of `take`: back to the pool, or handed to the tree."""
        self._num_held -= len(pages)
        if to_pool:
            self._give_back(pages)

    def share(self, pages: Pages, token_ids: Sequence[int]) -> None:
        """Put the whole pages of `token_ids` (all computed) into the tree and use the tree's.

        A page that the tree already had under another number is a duplicate: it is freed, and the
        table points at the tree's from now on.
        """
        whole = len(token_ids) // self.page_size
        if whole <= pages.num_tree:
            return
        owned, node = self.tree.insert(
            token_ids[: whole * self.page_size], pages.table, pages.namespace
        )
        self.tree.lock(node)
        if pages.node is not None:
            self.tree.unlock(pages.node)
        fresh = range(pages.num_tree, whole)
        duplicates = [pages.table[i] for i in fresh if pages.table[i] != owned[i]]
        self._num_held -= len(fresh)
        pages.table[:whole] = owned
        pages.node, pages.num_tree = node, whole
        self._give_back(duplicates)
        if node.hits == 0:
            node.hits = 1
            self.on_used((node,))

    def end(self, pages: Pages, token_ids: Sequence[int]) -> None:
        """Keep what is whole in the tree, free the rest. `token_ids` are those computed."""
        self.share(pages, token_ids)
        own = pages.table[pages.num_tree :]
        self._num_held -= len(own)
        self._give_back(own)
        if pages.node is not None:
            self.tree.unlock(pages.node)
        pages.table, pages.node, pages.num_tree, pages.path = [], None, 0, ()

    # ---- the whole ---------------------------------------------------------------------------

    def reset(self) -> int:
        """Forget all cached prefixes; returns how many pages that freed. No request holds any."""
        assert self._num_held == 0, f"{self._num_held} pages are held"
        freed = self.tree.reset()
        self._give_back(freed)
        return len(freed)

    @property
    def num_evicted_total(self) -> int:
        """Pages evicted since the start."""
        return self.tree.num_evicted_total

    def usage(self) -> KVUsage:
        """The account."""
        return KVUsage(
            total_pages=self._allocator.num_pages,
            free_pages=self._allocator.num_free,
            evictable_pages=self.tree.num_evictable,
            locked_pages=self.tree.num_locked,
            held_pages=self._num_held,
            page_size_tokens=self.page_size,
        )

    def violation(self, *, idle: bool) -> str:
        """What is wrong with the account, or nothing. At idle nothing may be locked or held."""
        use = self.usage()
        total = use.free_pages + use.evictable_pages + use.locked_pages + use.held_pages
        if total != use.total_pages:
            return (
                f"free {use.free_pages} + evictable {use.evictable_pages} + locked "
                f"{use.locked_pages} + held {use.held_pages} = {total}, not {use.total_pages}"
            )
        if idle and use.used_pages:
            return f"idle, but {use.locked_pages} pages are locked and {use.held_pages} held"
        return ""

    def _give_back(self, pages: list[int]) -> None:
        if not pages:
            return
        if self._on_free is not None:
            self._on_free(pages)
        self._allocator.free(pages)

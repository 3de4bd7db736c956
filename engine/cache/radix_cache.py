"""Prefix cache: a radix tree over whole pages of token ids, one root a namespace.

Decides on plain Python. A node's key is the tokens of its pages as little-endian uint32 bytes, so
that comparing prefixes is a memcmp. The tree owns the pages of its nodes; a locked node's pages,
and those of its ancestors, are never evicted. Eviction takes the least recently used leaf: a heap
whose stale entries are dropped when they surface, O(log n) a leaf.

After RadixAttention (Zheng et al., "SGLang: Efficient Execution of Structured Language Model
Programs"), written for pages instead of tokens.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

_TOKEN_BYTES = 4


class Node:
    """A run of pages. `lock_count` counts the requests below or at it."""

    __slots__ = (
        "children",
        "is_queued",
        "key",
        "last_used",
        "lock_count",
        "namespace",
        "pages",
        "parent",
    )

    def __init__(self, parent: Node | None, key: bytes, pages: list[int], namespace: str) -> None:
        self.parent = parent
        self.key = key
        self.pages = pages
        self.namespace = namespace
        self.children: dict[bytes, Node] = {}
        self.lock_count = 0
        self.last_used = 0
        self.is_queued = False  # in the heap of leaves: once, however often it is used


@dataclass(slots=True, frozen=True)
class Match:
    """The longest cached prefix. `pages` may be evicted until `lock(node)`."""

    pages: list[int]
    node: Node

    def num_tokens(self, page_size: int) -> int:
        """Tokens whose KV is found."""
        return len(self.pages) * page_size


class RadixCache:
    """One tree per namespace (`extra_key`), sharing one pool of pages."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._page_bytes = page_size * _TOKEN_BYTES
        self._clock = 0
        self._roots: dict[str, Node] = {}
        self._leaves: list[tuple[int, int, Node]] = []  # (last_used, tie, node)
        self._ties = 0
        self.num_evictable = 0
        self.num_locked = 0
        self.num_evicted_total = 0

    # ---- look up -----------------------------------------------------------------------------

    def match(self, token_ids: Sequence[int], namespace: str = "") -> Match:
        """Find the longest cached prefix, in whole pages.

        Splits a node at most, so that the match ends at a node; evicts nothing. Cost: O(tokens).
        """
        root = self._roots.get(namespace)
        if root is None:  # asking leaves nothing behind: a client may name any namespace
            return Match(pages=[], node=Node(None, b"", [], namespace))
        node, pages = self._walk(root, self._key(token_ids))
        return Match(pages=pages, node=node)

    def _walk(self, root: Node, key: bytes) -> tuple[Node, list[int]]:
        self._clock += 1
        node, offset, pages = root, 0, list[int]()
        step = self._page_bytes
        while offset < len(key):
            child = node.children.get(key[offset : offset + step])
            if child is None:
                break
            child.last_used = self._clock
            length = len(child.key)
            if key[offset : offset + length] == child.key:
                node, offset = child, offset + length
                pages += child.pages
                continue
            shared = self._shared_bytes(child.key, key, offset)
            node = self._split(child, shared)
            pages += node.pages
            break
        return node, pages

    def _shared_bytes(self, node_key: bytes, key: bytes, offset: int) -> int:
        """Length of the common whole pages; the first page is known to be equal."""
        step = self._page_bytes
        low, high = 1, min(len(node_key), len(key) - offset) // step
        while low < high:  # the longest equal prefix, by bisection over pages
            middle = (low + high + 1) // 2
            if key[offset : offset + middle * step] == node_key[: middle * step]:
                low = middle
            else:
                high = middle - 1
        return low * step

    def _split(self, child: Node, at_bytes: int) -> Node:
        """Cut `child` so that its first part is a node of its own; returns that part."""
        parent = child.parent
        assert parent is not None
        num_pages = at_bytes // self._page_bytes
        upper = Node(parent, child.key[:at_bytes], child.pages[:num_pages], child.namespace)
        upper.lock_count, upper.last_used = child.lock_count, child.last_used
        parent.children[upper.key[: self._page_bytes]] = upper
        child.parent, child.key = upper, child.key[at_bytes:]
        child.pages = child.pages[num_pages:]
        upper.children[child.key[: self._page_bytes]] = child
        return upper

    # ---- change ------------------------------------------------------------------------------

    def insert(
        self, token_ids: Sequence[int], pages: Sequence[int], namespace: str = ""
    ) -> tuple[list[int], Node]:
        """Cache the whole pages of `token_ids`; the tree takes over those it did not have.

        Returns the tree's pages for the whole prefix (equal to `pages` where it took them over) and
        the node they end at. Where they differ, the caller's page is a duplicate: it stays the
        caller's to free.
        """
        key = self._key(token_ids)
        num_pages = len(key) // self._page_bytes
        assert len(pages) >= num_pages, f"{len(pages)} pages for {num_pages}"
        root = self._roots.setdefault(namespace, Node(None, b"", [], namespace))
        node, owned = self._walk(root, key)
        if len(owned) < num_pages:
            rest = key[len(owned) * self._page_bytes :]
            fresh = Node(node, rest, list(pages[len(owned) : num_pages]), namespace)
            fresh.last_used = self._clock
            node.children[rest[: self._page_bytes]] = fresh
            self.num_evictable += len(fresh.pages)
            self._push(fresh)
            node, owned = fresh, owned + fresh.pages
        return owned, node

    def lock(self, node: Node) -> None:
        """Keep this node and its ancestors until `unlock`."""
        walk: Node | None = node
        while walk is not None and walk.parent is not None:
            if walk.lock_count == 0:
                self.num_evictable -= len(walk.pages)
                self.num_locked += len(walk.pages)
            walk.lock_count += 1
            walk = walk.parent

    def unlock(self, node: Node) -> None:
        """Take one `lock` back."""
        walk: Node | None = node
        while walk is not None and walk.parent is not None:
            assert walk.lock_count > 0, "unlock of a node that is not locked"
            walk.lock_count -= 1
            if walk.lock_count == 0:
                self.num_locked -= len(walk.pages)
                self.num_evictable += len(walk.pages)
                if not walk.children:
                    self._push(walk)
            walk = walk.parent

    def evict(self, num_pages: int) -> list[int]:
        """Drop least recently used leaves until `num_pages` are free, or nothing is left to drop.

        Returns the pages, now the caller's. Never frees a locked node; may free a few more.
        """
        freed: list[int] = []
        while len(freed) < num_pages and self._leaves:
            last_used, _, node = heapq.heappop(self._leaves)
            node.is_queued = False
            if node.parent is None or node.children or node.lock_count:
                continue  # grown or locked since it was pushed
            if node.last_used != last_used:
                self._push(node)  # used since: it goes back in its place
                continue
            freed += self._drop(node)
        self.num_evicted_total += len(freed)
        return freed

    def _drop(self, leaf: Node) -> list[int]:
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.key[: self._page_bytes]]
        leaf.parent = None
        self.num_evictable -= len(leaf.pages)
        if parent.parent is not None and not parent.children and not parent.lock_count:
            self._push(parent)
        elif parent.parent is None and not parent.children:
            self._roots.pop(parent.namespace, None)
        return leaf.pages

    def reset(self) -> list[int]:
        """Forget everything; returns all pages the tree owned. No node may be locked."""
        assert self.num_locked == 0, f"{self.num_locked} pages are locked"
        pages: list[int] = []
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            pages += node.pages
            stack += node.children.values()
            node.parent = None
        self._roots, self._leaves = {}, []
        self.num_evictable = 0
        return pages

    # ---- small things ------------------------------------------------------------------------

    def _key(self, token_ids: Sequence[int]) -> bytes:
        """Whole pages of tokens, as bytes; the incomplete page is left out."""
        whole = len(token_ids) // self.page_size * self.page_size
        return array("I", token_ids[:whole]).tobytes()

    def _push(self, node: Node) -> None:
        if node.is_queued:
            return  # an older entry: it goes back in its place when it surfaces
        node.is_queued = True
        self._ties += 1
        heapq.heappush(self._leaves, (node.last_used, self._ties, node))

"""Prefix cache: a radix tree over whole pages of token ids, one root a namespace, on two tiers.

Decides on plain Python. A node's key is the tokens of its pages as little-endian uint32 bytes, so
that comparing prefixes is a memcmp. The tree owns the pages of its nodes, on the device and on the
host. What is on the device is a prefix of every path; below it a path may go on on the host alone.
A locked node's device pages, and those of its ancestors, are never evicted. Each tier evicts its
least recently used end: a heap whose stale entries are dropped when they surface, O(log n) a node.

After RadixAttention (Zheng et al., "SGLang: Efficient Execution of Structured Language Model
Programs"), written for pages instead of tokens.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.cache.node import Node

_TOKEN_BYTES = 4
_TOKENS = "I"


@dataclass(slots=True, frozen=True)
class Match:
    """The longest cached prefix. `pages` may be evicted until `lock(node)`.

    `path` are all nodes of it, those on the host alone last; `node` is the last one of the device.
    """

    pages: list[int]
    node: Node
    path: list[Node]

    def num_tokens(self, page_size: int) -> int:
        """Tokens whose KV is on the device."""
        return len(self.pages) * page_size

    def on_host(self) -> list[Node]:
        """The nodes that would have to be loaded, from the top."""
        return [node for node in self.path if node.pages is None]


class RadixCache:
    """One tree per namespace, sharing one device pool and one host pool.

    `save` is called with a node that is about to leave the device and is not on the host.
    """

    def __init__(self, page_size: int, save: Callable[[Node], None] | None = None) -> None:
        self.page_size = page_size
        self.page_bytes = page_size * _TOKEN_BYTES
        self.save = save
        self._clock = 0
        self._roots: dict[str, Node] = {}
        self._leaves: list[tuple[int, int, Node]] = []  # of the device: (last_used, tie, node)
        self._host_ends: list[tuple[int, int, Node]] = []
        self._ties = 0
        self.num_evictable = 0
        self.num_locked = 0
        self.num_evicted_total = 0
        self.num_host_evictable = 0
        self.num_host_locked = 0
        self.num_host_evicted_total = 0
        self.on_host_freed: Callable[[list[int]], None] = lambda _: None
        self.on_host_orphaned: Callable[[int], None] = lambda _: None  # pages left to their copy

    # ---- look up -----------------------------------------------------------------------------

    def match(self, token_ids: Sequence[int], namespace: str = "") -> Match:
        """Find the longest cached prefix, in whole pages.

        Splits a node at most, so that the match ends at a node; evicts nothing. Cost: O(tokens).
        """
        root = self._roots.get(namespace)
        if root is None:  # asking leaves nothing behind: a client may name any namespace
            return Match(pages=[], node=Node(None, b"", namespace), path=[])
        path = self._path(root, self.key_of(token_ids))
        node, pages = root, list[int]()
        for step in path:
            if step.pages is None:
                break
            node = step
            pages += step.pages
        return Match(pages, node, path)

    def _path(self, root: Node, key: bytes) -> list[Node]:
        """The nodes along `key`; the last one is split where it goes on differently."""
        self._clock += 1
        clock, step = self._clock, self.page_bytes
        node, offset, path = root, 0, []
        end = len(key)
        while offset < end:
            child = node.children.get(key[offset : offset + step])
            if child is None:
                break
            child.last_used = clock
            if not key.startswith(child.key, offset):
                path.append(self._split(child, self._shared_bytes(child.key, key, offset)))
                break
            path.append(child)
            node, offset = child, offset + len(child.key)
        return path

    def _shared_bytes(self, node_key: bytes, key: bytes, offset: int) -> int:
        """Length of the common whole pages; the first page is known to be equal."""
        step = self.page_bytes
        low, high = 1, min(len(node_key), len(key) - offset) // step
        while low < high:  # the longest equal prefix, by bisection over pages
            middle = (low + high + 1) // 2
            if key[offset : offset + middle * step] == node_key[: middle * step]:
                low = middle
            else:
                high = middle - 1
        return low * step

    def _split(self, child: Node, at_bytes: int) -> Node:
        upper = child.split(at_bytes, self.page_bytes)
        if upper.host is not None:
            self._push_host(upper)
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
        key = self.key_of(token_ids)
        num_pages = len(key) // self.page_bytes
        assert len(pages) >= num_pages, f"{len(pages)} pages for {num_pages}"
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(None, b"", namespace)
        node, owned = root, list[int]()
        for step in self._path(root, key):
            if step.pages is None:  # computed again before it was loaded
                count = len(step.key) // self.page_bytes
                self.put_on_device(step, list(pages[len(owned) : len(owned) + count]))
                assert step.pages is not None
            node = step
            owned += step.pages
        if len(owned) < num_pages:
            rest = key[len(owned) * self.page_bytes :]
            fresh = Node(node, rest, namespace)
            fresh.last_used = self._clock
            node.children[rest[: self.page_bytes]] = fresh
            self.put_on_device(fresh, list(pages[len(owned) : num_pages]))
            node, owned = fresh, list(pages[:num_pages]) if owned == [] else owned + fresh.pages  # type: ignore[operator]
        return owned, node

    def put_on_device(self, node: Node, pages: list[int]) -> None:
        """The node's pages are on the device from now on; its parent's are already."""
        assert node.parent is not None and node.pages is None
        node.pages = pages
        node.parent.device_children += 1
        if node.lock_count:
            self.num_locked += len(pages)
        else:
            self.num_evictable += len(pages)
            if not node.device_children:
                self._push(node)

    def insert_host(
        self, token_ids: Sequence[int], start: int, pages: Sequence[int], namespace: str
    ) -> list[int]:
        """Cache pages that came from storage: those of `token_ids` from page `start` on.

        Returns those that it did not take over, for the caller to free: what the tree has on the
        host already, and all that hangs in the air because the prefix before `start` is gone.
        """
        root = self._roots.get(namespace)
        key = self.key_of(token_ids)[: (start + len(pages)) * self.page_bytes]
        if root is None:
            if start:
                return list(pages)
            root = self._roots[namespace] = Node(None, b"", namespace)
        path, at, left, node = self._path(root, key), 0, list[int](), root
        for step in path:
            count = len(step.key) // self.page_bytes
            if at + count > start:
                first = max(at, start)
                own = list(pages[first - start : at + count - start])
                if step.host is None and step.backup is None and first == at:
                    self.put_on_host(step, own)
                else:
                    left += own
            node, at = step, at + count
        if at < start:
            self._drop_empty_root(root)
            return list(pages)
        rest = list(pages[at - start :])
        if rest:
            fresh = Node(node, key[at * self.page_bytes :], namespace)
            fresh.last_used = self._clock
            node.children[fresh.key[: self.page_bytes]] = fresh
            self.put_on_host(fresh, rest)
        return left

    def put_on_host(self, node: Node, pages: list[int]) -> None:
        """The node has a copy on the host from now on."""
        assert node.host is None
        node.host = pages
        if node.host_locks:
            self.num_host_locked += len(pages)
        else:
            self.num_host_evictable += len(pages)
            self._push_host(node)

    def lock(self, node: Node) -> None:
        """Keep this node's device pages and its ancestors' until `unlock`."""
        walk: Node | None = node
        while walk is not None and walk.parent is not None:
            if walk.lock_count == 0:
                assert walk.pages is not None
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
                assert walk.pages is not None
                self.num_locked -= len(walk.pages)
                self.num_evictable += len(walk.pages)
                if not walk.device_children:
                    self._push(walk)
            walk = walk.parent

    def lock_host(self, node: Node) -> None:
        """Keep this node's host pages until `unlock_host`."""
        assert node.host is not None
        if node.host_locks == 0:
            self.num_host_evictable -= len(node.host)
            self.num_host_locked += len(node.host)
        node.host_locks += 1

    def unlock_host(self, node: Node) -> None:
        """Take one `lock_host` back."""
        assert node.host is not None and node.host_locks > 0
        node.host_locks -= 1
        if node.host_locks == 0:
            self.num_host_locked -= len(node.host)
            self.num_host_evictable += len(node.host)
            self._push_host(node)

    # ---- evict -------------------------------------------------------------------------------

    def evict(self, num_pages: int) -> list[int]:
        """Take least recently used ends off the device until `num_pages` are free, or none is left.

        Returns the pages, now the caller's. Never frees a locked node; may free a few more.
        """
        freed: list[int] = []
        while len(freed) < num_pages and self._leaves:
            last_used, _, node = heapq.heappop(self._leaves)
            node.is_queued = False
            if node.pages is None or node.device_children or node.lock_count:
                continue  # grown, locked or gone since it was pushed
            if node.last_used != last_used:
                self._push(node)  # used since: it goes back in its place
                continue
            if node.host is None and self.save is not None:
                self.save(node)
            freed += self._drop(node)
        self.num_evicted_total += len(freed)
        return freed

    def _drop(self, node: Node) -> list[int]:
        parent, pages = node.parent, node.pages
        assert parent is not None and pages is not None
        node.pages = None
        self.num_evictable -= len(pages)
        parent.device_children -= 1
        if node.host is None:
            self._drop_host_below(node)
            self._remove(node)
        elif not node.children:
            self._push_host(node)
        if parent.parent is not None and not parent.device_children and not parent.lock_count:
            self._push(parent)
        return pages

    def _drop_host_below(self, node: Node) -> None:
        """A node leaves both tiers: what hangs below it on the host cannot be found any more."""
        stack = list(node.children.values())
        while stack:
            below = stack.pop()
            stack += below.children.values()
            assert below.pages is None and below.load is None
            self.num_host_evicted_total += self._forget_host(below)
            below.parent = None
        node.children = {}

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.key[: self.page_bytes]]
        node.parent = None
        if parent.parent is None:
            self._drop_empty_root(parent)
        elif parent.pages is None and not parent.children:
            self._push_host(parent)

    def _drop_empty_root(self, root: Node) -> None:
        if not root.children and self._roots.get(root.namespace) is root:
            del self._roots[root.namespace]

    def evict_host(self, num_pages: int) -> int:
        """Give up least recently used host copies until `num_pages` are free, or none is left.

        They go to `on_host_freed`; returns how many. A node that was on the host alone is forgotten
        and so must be an end; one that is on the device too just loses its copy.
        """
        freed = 0
        while freed < num_pages and self._host_ends:
            last_used, _, node = heapq.heappop(self._host_ends)
            node.is_host_queued = False
            if node.host is None or node.host_locks or node.parent is None:
                continue
            if node.pages is None and node.children:
                continue  # pushed again when it becomes an end
            if node.last_used != last_used:
                self._push_host(node)
                continue
            pages, node.host = node.host, None
            freed += len(pages)
            self.num_host_evictable -= len(pages)
            self.on_host_freed(pages)
            if node.pages is None:
                self._remove(node)
        self.num_host_evicted_total += freed
        return freed

    def reset(self) -> list[int]:
        """Forget everything; returns all device pages the tree owned. No node may be locked.

        Host pages go to `on_host_freed`, but for those that a copy still uses: they are its own
        from now on, and counted to `on_host_orphaned`.
        """
        assert self.num_locked == 0, f"{self.num_locked} pages are locked"
        pages: list[int] = []
        for node in self.nodes():
            pages += node.pages or ()
            if node.host is not None:
                self._forget_host(node)
            node.parent = node.pages = None
        self._roots, self._leaves, self._host_ends = {}, [], []
        self.num_evictable = 0
        return pages

    def _forget_host(self, node: Node) -> int:
        """Free a node's host pages, or leave them to the copy that uses them."""
        pages, node.host = node.host, None
        assert pages is not None
        if node.host_locks:
            self.num_host_locked -= len(pages)
            self.on_host_orphaned(len(pages))
        else:
            self.num_host_evictable -= len(pages)
            self.on_host_freed(pages)
        return len(pages)

    # ---- small things ------------------------------------------------------------------------

    def nodes(self) -> list[Node]:
        """All nodes, parents before their children."""
        found: list[Node] = []
        level = [child for root in self._roots.values() for child in root.children.values()]
        while level:
            found += level
            level = [child for node in level for child in node.children.values()]
        return found

    def key_of(self, token_ids: Sequence[int]) -> bytes:
        """Whole pages of tokens, as bytes; the incomplete page is left out."""
        whole = len(token_ids) // self.page_size * self.page_size
        if whole != len(token_ids):
            token_ids = token_ids[:whole]
        if type(token_ids) is array:
            return token_ids.tobytes()
        return array(_TOKENS, token_ids).tobytes()

    def _push(self, node: Node) -> None:
        if node.is_queued:
            return  # an older entry: it goes back in its place when it surfaces
        node.is_queued = True
        self._ties += 1
        heapq.heappush(self._leaves, (node.last_used, self._ties, node))

    def _push_host(self, node: Node) -> None:
        if node.is_host_queued:
            return
        node.is_host_queued = True
        self._ties += 1
        heapq.heappush(self._host_ends, (node.last_used, self._ties, node))

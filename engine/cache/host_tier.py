"""L2: which nodes have a copy on the host. Copies run beside the forward pass.

One thread calls it, the scheduler's. free + evictable + locked + held = total, where locked pages
are the tree's and used by a copy, held ones belong to a copy alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from engine.cache.kv_cache import KVCache
from engine.cache.mover import Copier, Copy, Mover
from engine.cache.node import Node, Transfer
from engine.log import get_logger
from engine.memory.host_pool import HostPool
from engine.memory.page_allocator import PageAllocator
from engine.protocol import HostUsage, WritePolicy

log = get_logger()

MAX_BACKUP_PAGES = 512  # under way at once: more waits, and is chosen anew
_WAIT_S = 10.0
_HITS = {WritePolicy.WRITE_THROUGH: 1, WritePolicy.WRITE_THROUGH_SELECTIVE: 2}


class HostTier:
    """`on_backed_up` hears of nodes that have a copy now."""

    def __init__(
        self, kv: KVCache, pool: HostPool, copier: Copier, wake: Callable[[], None]
    ) -> None:
        self.pool = pool
        self.write_policy = WritePolicy.WRITE_THROUGH
        self.allocator = PageAllocator(pool.num_pages)
        self.num_held = 0
        self.on_backed_up: Callable[[Iterable[Node]], None] = lambda _: None
        self.backup_pages_total = 0
        self.dropped_pages_total = 0  # that found no room
        self.loaded_pages_total = 0
        self.copy_errors_total = 0
        self._kv = kv
        self._tree = kv.tree
        self._copier = copier
        self._mover = Mover(copier, wake)
        self._wanted: deque[Node] = deque()
        self._is_wanted: set[Node] = set()
        self._backups: dict[Transfer, Node] = {}
        self._loads: dict[Transfer, tuple[Node | None, Node]] = {}  # locked above, and the last one
        kv.tree.save = self._save
        kv.tree.on_host_freed = self.allocator.free
        kv.tree.on_host_orphaned = self._orphaned

    # ---- device → host -----------------------------------------------------------------------

    def used(self, path: Iterable[Node]) -> None:
        """A request uses these nodes: the write policy may want a copy of them."""
        wanted_hits = _HITS.get(self.write_policy)
        for node in path:
            if (
                node.host is None
                and node.backup is None
                and wanted_hits is not None
                and node.hits >= wanted_hits
                and node not in self._is_wanted
            ):
                self._wanted.append(node)
                self._is_wanted.add(node)

    def start_backups(self) -> None:
        """Begin with what is wanted, as far as the limit and the room on the host allow."""
        while self._wanted and self._backup_pages() < MAX_BACKUP_PAGES:
            node = self._wanted.popleft()
            self._is_wanted.discard(node)
            if node.parent is None or node.pages is None or node.host is not None or node.backup:
                continue
            pages = self.take_host(len(node.pages))
            if pages is None:
                self.dropped_pages_total += len(node.pages)
                continue
            transfer = node.backup = Transfer({node: pages})
            self._tree.lock(node)
            self._backups[transfer] = node
            self._mover.start(Copy(transfer, False, list(node.pages), pages))

    def _backup_pages(self) -> int:
        return sum(transfer.num_pages for transfer in self._backups)

    def _backed_up(self, copy: Copy) -> None:
        anchor = self._backups.pop(copy.transfer)
        nodes = []
        for node, pages in copy.transfer.parts.items():
            node.backup = None
            self.num_held -= len(pages)
            if copy.error or node.parent is None or node.host is not None:
                self.allocator.free(pages)
            else:
                self._tree.put_on_host(node, pages)
                nodes.append(node)
                self.backup_pages_total += len(pages)
        if anchor.parent is not None:
            self._tree.unlock(anchor)
        self._note(copy)
        self.on_backed_up(nodes)

    def _save(self, node: Node) -> None:
        """A node is about to leave the device: keep it, and what is above it, if that is the policy
        or if something below it is on the host."""
        if self.write_policy is not WritePolicy.WRITE_BACK and not node.children:
            return
        above: list[Node] = []
        walk: Node | None = node
        while walk is not None and walk.parent is not None:
            if walk.host is None and walk.backup is None:
                above.append(walk)
            walk = walk.parent
        saved: list[Node] = []
        for each in reversed(above):
            assert each.pages is not None
            pages = self.take_host(len(each.pages))
            if pages is None:
                self.dropped_pages_total += len(each.pages)
                break
            self._copier.to_host(each.pages, pages)
            self.num_held -= len(pages)
            self._tree.put_on_host(each, pages)
            self._tree.lock_host(each)  # the next one's room is not made of it
            self.backup_pages_total += len(pages)
            saved.append(each)
        for each in saved:
            self._tree.unlock_host(each)
        self.on_backed_up(saved)

    # ---- host → device -----------------------------------------------------------------------

    def load(self, above: Node, nodes: list[Node]) -> bool:
        """Begin to copy `nodes`, a chain from the host alone, below `above`. False: no room."""
        count = sum(len(node.host or ()) for node in nodes)
        anchor = None if above.is_root else above
        if anchor is not None:
            self._tree.lock(anchor)
        for node in nodes:
            self._tree.lock_host(node)
        targets = self._kv.take(count)
        if targets is None:
            self._unlock(anchor, nodes)
            return False
        parts, at, sources = {}, 0, list[int]()
        for node in nodes:
            assert node.host is not None
            sources += node.host
            parts[node] = targets[at : at + len(node.host)]
            at += len(node.host)
        transfer = Transfer(parts)
        for node in nodes:
            node.load = transfer
        self._loads[transfer] = (anchor, nodes[-1])
        self._mover.start(Copy(transfer, True, sources, targets))
        return True

    def _unlock(self, anchor: Node | None, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self._tree.unlock_host(node)
        if anchor is not None:
            self._tree.unlock(anchor)

    def _loaded(self, copy: Copy) -> None:
        anchor, last = self._loads.pop(copy.transfer)
        parts = copy.transfer.parts
        chain, walk = list[Node](), last
        while walk in parts:
            chain.append(walk)
            if walk.parent is None:
                break
            walk = walk.parent
        for node in reversed(chain):
            node.load = None
            pages = parts[node]
            is_gone = node.parent is None or node.pages is not None
            self._kv.give(pages, to_pool=bool(copy.error) or is_gone)
            if not (copy.error or is_gone):
                self._tree.put_on_device(node, pages)
                self.loaded_pages_total += len(pages)
            if node.host is not None:
                self._tree.unlock_host(node)
        if anchor is not None and anchor.parent is not None:
            self._tree.unlock(anchor)
        self._note(copy)

    def is_loading(self, nodes: Iterable[Node]) -> bool:
        """Some of these are on their way to the device."""
        return any(node.load is not None for node in nodes)

    # ---- the whole ---------------------------------------------------------------------------

    def take_host(self, count: int) -> list[int] | None:
        """Host pages for whoever asks, evicting others; `give_host` takes them back."""
        short = count - self.allocator.num_free
        if short > self._tree.num_host_evictable:
            return None
        if short > 0:
            self._tree.evict_host(short)
        if count > self.allocator.num_free:
            return None
        self.num_held += count
        return self.allocator.allocate(count)

    def give_host(self, pages: list[int], *, to_pool: bool) -> None:
        """Pages of `take_host`: back to the pool, or handed to the tree."""
        self.num_held -= len(pages)
        if to_pool:
            self.allocator.free(pages)

    def _orphaned(self, num_pages: int) -> None:
        self.num_held += num_pages

    def poll(self) -> None:
        """Take note of the copies that are done."""
        for copy in self._mover.finished():
            self._finish(copy)

    def _finish(self, copy: Copy) -> None:
        if copy.is_load:
            self._loaded(copy)
        else:
            self._backed_up(copy)

    def _note(self, copy: Copy) -> None:
        if copy.error:
            self.copy_errors_total += 1
            log.error("a copy between device and host failed", reason=copy.error)

    @property
    def num_backups(self) -> int:
        """Nodes that wait for their copy, or get it now."""
        return len(self._wanted) + len(self._backups)

    @property
    def num_loads(self) -> int:
        """Loads under way."""
        return len(self._loads)

    @property
    def is_copying(self) -> bool:
        """Device pages are in use by copies."""
        return bool(self._backups or self._loads)

    def settle(self) -> None:
        """Wait for the copies under way, and want no more: the tree will be reset."""
        self._wanted.clear()
        self._is_wanted.clear()
        while self._mover.num_under_way:
            done = self._mover.wait(_WAIT_S)
            assert done, "a copy between device and host does not end"
            for copy in done:
                self._finish(copy)

    def close(self) -> None:
        """No copy is asked for any more."""
        self._mover.close()

    def usage(self) -> HostUsage:
        """The account."""
        return HostUsage(
            total_pages=self.pool.num_pages,
            free_pages=self.allocator.num_free,
            evictable_pages=self._tree.num_host_evictable,
            locked_pages=self._tree.num_host_locked,
            held_pages=self.num_held,
            page_bytes=self.pool.shape.payload_bytes,
            layout=self.pool.layout,
        )

    def violation(self, *, idle: bool) -> str:
        """What is wrong with the account, or nothing. At idle nothing may be locked or held."""
        use = self.usage()
        total = use.free_pages + use.evictable_pages + use.locked_pages + use.held_pages
        if total != use.total_pages:
            return (
                f"host: free {use.free_pages} + evictable {use.evictable_pages} + locked "
                f"{use.locked_pages} + held {use.held_pages} = {total}, not {use.total_pages}"
            )
        if idle and (use.locked_pages or use.held_pages):
            return f"host: idle, but {use.locked_pages} pages are locked, {use.held_pages} held"
        return ""

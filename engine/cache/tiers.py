"""What a request finds on the lower tiers, and what goes down to them: L2 and L3 together.

One thread calls it, the scheduler's, once a step (`poll`) and before a request is admitted
(`is_ready`). Nothing in here waits: copies and I/O run beside, and every wait of a request ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from engine.cache.attached import Opened
from engine.cache.host_tier import HostTier
from engine.cache.kv_cache import KVCache
from engine.cache.mover import Copier
from engine.cache.node import Node, Transfer
from engine.cache.storage import keys
from engine.cache.storage.worker import Get, Put, StorageWorker
from engine.cache.ticket import Fetch, Stage, Ticket, wait_until
from engine.memory.host_pool import HostPool
from engine.protocol import CachePolicies, PrefetchPolicy

MAX_PUT_PAGES = 256  # under way at once
_PUT_PAGES = 32  # in one transfer, if a node does not have more
_FETCH_SHARE = 0.5  # of the host pool, for pages that are read from storage


class Tiers:
    """The lower tiers of one rank. A namespace is "CHECKSUM:TENANT"."""

    def __init__(
        self, kv: KVCache, pool: HostPool, copier: Copier, wake: Callable[[], None] = lambda: None
    ) -> None:
        self.host = HostTier(kv, pool, copier, wake)
        self.prefetch_policy = PrefetchPolicy.TIMEOUT
        self.attached: Opened | None = None
        self._tree = kv.tree
        self._wake = wake
        self._num_attachments = 0
        self._to_store: deque[Node] = deque()
        self._is_to_store: set[Node] = set()
        self._fetches: dict[bytes, Fetch] = {}  # by the key of their first page
        self._leaving: list[StorageWorker] = []  # detached, with calls under way
        kv.on_used = self._used
        self.host.on_backed_up = self._store

    # ---- a request before it is admitted -----------------------------------------------------

    def look(
        self,
        ticket: Ticket,
        token_ids: Sequence[int],
        namespace: str,
        limit_tokens: int,
        now: float,
    ) -> None:
        """Begin to read from storage what a waiting request could use."""
        if ticket.stage is Stage.NEW:
            ticket.stage = Stage.FETCHED
            ticket.fetch = self._fetch(token_ids, namespace, limit_tokens, now)
            if ticket.fetch is not None:
                ticket.stage = Stage.FETCHING

    def is_ready(
        self,
        ticket: Ticket,
        token_ids: Sequence[int],
        namespace: str,
        limit_tokens: int,
        now: float,
    ) -> bool:
        """Everything it could find is on the device, or it has waited long enough."""
        self.look(ticket, token_ids, namespace, limit_tokens, now)
        if ticket.stage is Stage.FETCHING:
            fetch = ticket.fetch
            assert fetch is not None
            if not fetch.is_taken and now < fetch.until:
                return False
            self._take_fetched(fetch)
            ticket.fetched_pages = fetch.num_taken
            ticket.stage = Stage.FETCHED
        if ticket.stage in (Stage.FETCHED, Stage.LOADING):
            whole = limit_tokens // self._tree.page_size * self._tree.page_size
            match = self._tree.match(token_ids[:whole], namespace)
            below = match.on_host()
            if self.host.is_loading(below):
                ticket.stage = Stage.LOADING  # its own load, or another request's
                return False
            if below and ticket.stage is Stage.FETCHED and self.host.load(match.node, below):
                ticket.loaded_pages = sum(len(node.host or ()) for node in below)
                ticket.stage = Stage.LOADING
                return False
            ticket.stage = Stage.READY
        return True

    def _fetch(
        self, token_ids: Sequence[int], namespace: str, limit_tokens: int, now: float
    ) -> Fetch | None:
        opened = self.attached
        if opened is None or opened.worker is None or not opened.worker.takes:
            return None
        size = self._tree.page_size
        whole = limit_tokens // size
        match = self._tree.match(token_ids[: whole * size], namespace)
        start = sum(len(node.key) for node in match.path) // self._tree.page_bytes
        missing = whole - start
        if missing * size < max(opened.config.prefetch_threshold, size):
            return None
        above = match.path[-1] if match.path else None
        before = self._hashes(above)[-1] if above is not None else self._seed(namespace)
        tokens = self._tree.key_of(token_ids[: whole * size])
        mark = _mark(opened, namespace)
        room = int(self.host.pool.num_pages * _FETCH_SHARE) - self._fetched_pages()
        wanted = []
        for page in range(start, min(whole, start + max(0, room))):
            at = page * self._tree.page_bytes
            before = keys.chain(before, tokens[at : at + self._tree.page_bytes])
            wanted.append(keys.page_key(mark, before))
        if not wanted:
            return None
        if wanted[0] in self._fetches:
            return self._fetches[wanted[0]]  # the same prefix, for another request
        pages = self.host.take_host(len(wanted))
        if pages is None:
            return None
        until = wait_until(opened.config, self.prefetch_policy, len(wanted) * size, now)
        get = Get(wanted, pages, prefix=self._prefix(opened, above))
        prefix = token_ids[: (start + len(wanted)) * size]
        fetch = Fetch(get, prefix, start, namespace, now, until)
        self._fetches[wanted[0]] = fetch
        opened.worker.start(get)
        return fetch

    def _fetched_pages(self) -> int:
        return sum(fetch.num_pages for fetch in self._fetches.values())

    def _take_fetched(self, fetch: Fetch) -> None:
        """Put what has come into the tree; the rest is given back when nobody writes to it."""
        if fetch.is_taken:
            return
        get = fetch.get
        fetch.is_taken = get.is_cancelled = True
        come = get.pages[: get.num_ok]
        get.num_taken = len(come)
        left = self._tree.insert_host(fetch.token_ids, fetch.start, come, fetch.namespace)
        fetch.num_taken = len(come)
        taken = set(come) - set(left)
        self.host.give_host(list(taken), to_pool=False)
        self.host.give_host(left, to_pool=True)
        if self.attached is not None:
            for node in self._tree.match(fetch.token_ids, fetch.namespace).path:
                if node.host is not None and taken.issuperset(node.host):
                    node.stored_in = self.attached.number

    # ---- host → storage ----------------------------------------------------------------------

    def _used(self, path: Sequence[Node]) -> None:
        self.host.used(path)
        if self.attached is not None:
            self._store(path)  # a page that could not be written then may be now

    def _store(self, nodes: Iterable[Node]) -> None:
        """These have a copy on the host: keep them in storage too, in this order."""
        if self.attached is None:
            return
        for node in nodes:
            if (
                node.host is not None
                and node.put is None
                and node.stored_in != self.attached.number
                and node not in self._is_to_store
            ):
                self._to_store.append(node)
                self._is_to_store.add(node)

    def _start_puts(self) -> None:
        opened = self.attached
        if opened is None or opened.worker is None:
            return
        worker = opened.worker
        while self._to_store and worker.num_put_pages < MAX_PUT_PAGES:
            nodes: list[Node] = []
            count = 0
            while self._to_store and count < _PUT_PAGES:
                node = self._to_store.popleft()
                self._is_to_store.discard(node)
                if node.host is None or node.put is not None or node.parent is None:
                    continue
                nodes.append(node)
                count += len(node.host)
            if not nodes:
                return
            if not worker.takes:
                opened.guard.dropped(count)
                continue
            worker.start(self._put(opened, nodes))

    def _put(self, opened: Opened, nodes: list[Node]) -> Put:
        wanted, pages, parts = [], list[int](), {}
        for node in nodes:
            assert node.host is not None
            wanted += self._keys(opened, node)
            pages += node.host
            parts[node] = list(node.host)
            self._tree.lock_host(node)
        transfer = Transfer(parts)
        for node in nodes:
            node.put = transfer
        prefix = self._prefix(opened, nodes[0].parent)
        return Put(transfer, wanted, pages, number=opened.number, prefix=prefix)

    def _keys(self, opened: Opened, node: Node) -> list[bytes]:
        mark = _mark(opened, node.namespace)
        return [keys.page_key(mark, each) for each in self._hashes(node)]

    def _prefix(self, opened: Opened, last: Node | None) -> list[bytes] | None:
        """Keys of all pages down to this node's, where the backend wants to be told."""
        if not opened.config.hicache_storage_pass_prefix_keys:
            return None
        path: list[Node] = []
        while last is not None and last.parent is not None:
            path.append(last)
            last = last.parent
        return [key for node in reversed(path) for key in self._keys(opened, node)]

    def _put_ended(self, put: Put) -> None:
        for node, pages in put.transfer.parts.items():
            node.put = None
            if node.parent is None:  # it has left the tree meanwhile
                self.host.give_host(pages, to_pool=True)
                continue
            self._tree.unlock_host(node)
            if all(put.kept.get(page, False) for page in pages):
                node.stored_in = put.number

    # ---- hashes ------------------------------------------------------------------------------

    def _hashes(self, node: Node) -> list[bytes]:
        """Of each of its pages; made when first asked for, from the root down."""
        chain: list[Node] = []
        walk: Node | None = node
        while walk is not None and walk.hashes is None and walk.parent is not None:
            chain.append(walk)
            walk = walk.parent
        for each in reversed(chain):
            parent = each.parent
            assert parent is not None
            before = parent.hashes[-1] if parent.hashes else self._seed(each.namespace)
            each.hashes = []
            for at in range(0, len(each.key), self._tree.page_bytes):
                before = keys.chain(before, each.key[at : at + self._tree.page_bytes])
                each.hashes.append(before)
        assert node.hashes is not None
        return node.hashes

    def _seed(self, namespace: str) -> bytes:
        return keys.seed(namespace.partition(":")[2])

    # ---- attach and detach -------------------------------------------------------------------

    def attach(self, opened: Opened) -> None:
        """Use this backend from now on; what is on the host already goes there too."""
        assert self.attached is None
        self._num_attachments += 1
        opened.number = self._num_attachments
        timeout_s = opened.config.io_timeout
        opened.worker = StorageWorker(
            opened.guard, self.host.pool, io_timeout_s=timeout_s, wake=self._wake
        )
        self.attached = opened
        self._store(self._tree.nodes())

    def detach(self) -> Opened | None:
        """Use it no longer. What is under way is given up, so that nobody waits for it; whoever
        holds the result closes it."""
        opened, self.attached = self.attached, None
        self._to_store.clear()
        self._is_to_store.clear()
        if opened is None:
            return None
        worker = opened.worker
        assert worker is not None
        worker.stop()
        worker.give_up()
        self._leaving.append(worker)
        for fetch in self._fetches.values():
            self._take_fetched(fetch)
        return opened

    def forget_stored(self) -> None:
        """The store was cleared: what is on the host goes there again when it is used."""
        for node in self._tree.nodes():
            node.stored_in = 0

    def close(self) -> None:
        """End all threads, those of calls under way when they come back. For tests: a rank ends
        with its process."""
        self.detach()
        self.host.close()

    def set_policies(self, policies: CachePolicies) -> None:
        """From the next page on."""
        self.host.write_policy = policies.write_policy
        self.prefetch_policy = policies.prefetch_policy

    # ---- each step ---------------------------------------------------------------------------

    def poll(self) -> None:
        """Take note of what has ended, and begin what is wanted."""
        self.host.poll()
        attached = self._worker
        for worker in [*self._leaving, *([attached] if attached is not None else [])]:
            for transfer in worker.ended():
                self._ended(transfer)
        self._leaving = [worker for worker in self._leaving if worker.is_busy]
        self.host.start_backups()
        self._start_puts()

    def _ended(self, transfer: Get | Put) -> None:
        if isinstance(transfer, Put):
            if transfer.is_back:
                self._put_ended(transfer)
            return
        fetch = next((f for f in self._fetches.values() if f.get is transfer), None)
        if fetch is not None:
            self._take_fetched(fetch)
            del self._fetches[fetch.get.keys[0]]
        if transfer.is_back:
            self.host.give_host(transfer.pages[transfer.num_taken :], to_pool=True)

    def reset(self) -> None:
        """The tree will be reset: no copy is under way when this returns, and what storage still
        uses is its own."""
        self.host.settle()
        self._to_store.clear()
        self._is_to_store.clear()
        if self._worker is not None:
            self._worker.give_up()
        for fetch in self._fetches.values():
            self._take_fetched(fetch)

    # ---- questions ---------------------------------------------------------------------------

    @property
    def _worker(self) -> StorageWorker | None:
        return self.attached.worker if self.attached is not None else None

    @property
    def num_prefetches(self) -> int:
        """Reads from storage that a request may wait for."""
        return self._worker.num_gets if self._worker is not None else 0

    @property
    def num_storage_backups(self) -> int:
        """Nodes that wait for storage, or go there now."""
        return len(self._to_store) + (self._worker.num_puts if self._worker is not None else 0)

    def violation(self) -> str:
        """What is wrong with the host's account, or nothing."""
        return self.host.violation(idle=not (self.host.is_copying or self.uses_storage))

    @property
    def uses_storage(self) -> bool:
        """Some call to a backend has host pages, be it one that was given up."""
        return bool(self._leaving) or (self._worker is not None and self._worker.is_busy)


def _mark(opened: Opened, namespace: str) -> bytes:
    """What keys begin with, for pages of these weights."""
    return keys.fingerprint(opened.identity, namespace.partition(":")[0])

"""A run of pages in the prefix tree, on the tiers where it lives, and copies that are under way."""

from __future__ import annotations


class Transfer:
    """A copy of whole nodes between two tiers. `parts` maps each node to the pages that it is
    copied to (or, to storage, from); a node that is split meanwhile becomes two of them."""

    __slots__ = ("parts",)

    def __init__(self, parts: dict[Node, list[int]]) -> None:
        self.parts = parts

    def split(self, lower: Node, upper: Node, num_upper_pages: int) -> None:
        """`upper` was cut off the head of `lower`."""
        pages = self.parts.pop(lower)
        self.parts[upper] = pages[:num_upper_pages]
        self.parts[lower] = pages[num_upper_pages:]

    @property
    def num_pages(self) -> int:
        """Pages of all its nodes."""
        return sum(map(len, self.parts.values()))


class Node:
    """`pages` are on the device, `host` on the host; a node lives while it has either.

    `lock_count` counts the requests below or at it, `host_locks` the copies that use its host
    pages. `stored_in` is the attachment that keeps it in storage, as far as is known.
    """

    __slots__ = (
        "backup",
        "children",
        "device_children",
        "hashes",
        "hits",
        "host",
        "host_locks",
        "is_host_queued",
        "is_queued",
        "key",
        "last_used",
        "load",
        "lock_count",
        "namespace",
        "pages",
        "parent",
        "put",
        "stored_in",
    )

    def __init__(
        self,
        parent: Node | None,
        key: bytes,
        namespace: str,
        *,
        pages: list[int] | None = None,
        host: list[int] | None = None,
    ) -> None:
        self.parent = parent
        self.key = key
        self.namespace = namespace
        self.pages = pages
        self.host = host
        self.children: dict[bytes, Node] = {}
        self.device_children = 0
        self.lock_count = 0
        self.host_locks = 0
        self.last_used = 0
        self.hits = 0
        self.is_queued = False  # in the heap of device leaves: once, however often it is used
        self.is_host_queued = False
        self.hashes: list[bytes] | None = None  # of each page, chained from the root
        self.backup: Transfer | None = None  # device → host
        self.load: Transfer | None = None  # host → device
        self.put: Transfer | None = None  # host → storage
        self.stored_in = 0

    @property
    def is_root(self) -> bool:
        """It holds nothing, or it has left the tree."""
        return self.parent is None

    def split(self, at_bytes: int, page_bytes: int) -> Node:
        """Cut the first part off as a node of its own, between this one and its parent."""
        parent = self.parent
        assert parent is not None
        count = at_bytes // page_bytes
        upper = Node(parent, self.key[:at_bytes], self.namespace)
        upper.lock_count, upper.host_locks = self.lock_count, self.host_locks
        upper.last_used, upper.hits = self.last_used, self.hits
        upper.stored_in = self.stored_in
        self.key = self.key[at_bytes:]
        if self.pages is not None:
            upper.pages, self.pages = self.pages[:count], self.pages[count:]
            upper.device_children = 1
        if self.host is not None:
            upper.host, self.host = self.host[:count], self.host[count:]
        if self.hashes is not None:
            upper.hashes, self.hashes = self.hashes[:count], self.hashes[count:]
        upper.backup, upper.load, upper.put = self.backup, self.load, self.put
        for transfer in (self.backup, self.load, self.put):
            if transfer is not None:
                transfer.split(self, upper, count)
        parent.children[upper.key[:page_bytes]] = upper
        self.parent = upper
        upper.children[self.key[:page_bytes]] = self
        return upper

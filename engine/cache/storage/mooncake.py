"""Storage in Mooncake: memory that its clients give to a store, found through a master.

What a client gave goes with it when it closes, and everything goes with the master. The client runs
in a process of its own: its `close` stops every thread of its process for 0.5 s to 11 s and its
`setup` for up to 90 s (it holds Python's lock), and closing it during a call ends its process.
"""

from __future__ import annotations

from engine.cache.storage.isolated import IsolatedStorage
from engine.protocol import HostLayout, StorageBackend


class MooncakeStorage(IsolatedStorage):
    """Memory of a Mooncake store."""

    layouts = frozenset(HostLayout) - {HostLayout.LAYER_FIRST}
    layout_reason = "it moves a page as one run of bytes"
    backend = StorageBackend.MOONCAKE

"""Storage in EIC of Volcengine.

Experimental: its client is not public. This is written against what SGLang's adapter calls, and
tried on a stand-in only. It runs in a process of its own, as every vendor's library does.
"""

from __future__ import annotations

from engine.cache.storage.isolated import IsolatedStorage
from engine.protocol import StorageBackend


class EicStorage(IsolatedStorage):
    """Keys of an EIC instance."""

    backend = StorageBackend.EIC
    is_tcp = False  # not said anywhere

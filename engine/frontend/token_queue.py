"""Tokens of one request on their way to whoever reads them. What waits is joined: a reader who is
slow, or has stopped, costs memory by the token and not by the step, and delays nobody else.

One event loop, one reader.
"""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from engine.ipc.messages import TokenOut


class TokenQueue:
    """A FIFO whose reader gets all that came since it last asked."""

    def __init__(self) -> None:
        self._items: deque[TokenOut] = deque()
        self._has_items = asyncio.Event()

    def put(self, item: TokenOut) -> None:
        """Add a step's output; never waits."""
        self._items.append(item)
        self._has_items.set()

    async def get(self) -> TokenOut:
        """Everything that waits, as one item: up to a change of the weights, in order."""
        await self._has_items.wait()
        return self.get_nowait()

    def get_nowait(self) -> TokenOut:
        """The same, without waiting. Raises IndexError when there is nothing."""
        parts = [self._items.popleft()]
        while self._items and _may_join(parts[-1], self._items[0]):
            parts.append(self._items.popleft())
        if not self._items:
            self._has_items.clear()
        return parts[0] if len(parts) == 1 else _joined(parts)

    @property
    def is_empty(self) -> bool:
        """Nothing waits."""
        return not self._items


def _may_join(before: TokenOut, after: TokenOut) -> bool:
    """The end of a request that was ended from here names no weights."""
    return before.weight_version == after.weight_version or not after.weight_version


def _joined(parts: list[TokenOut]) -> TokenOut:
    first, last = parts[0], parts[-1]
    return msgspec.structs.replace(
        last,
        start=first.start,
        token_ids=[token for part in parts for token in part.token_ids],
        logprobs=[entry for part in parts for entry in part.logprobs],
        prompt_logprobs=[entry for part in parts for entry in part.prompt_logprobs],
        cached_tokens=max(part.cached_tokens for part in parts),
        cached=last.cached or first.cached,
        retractions=max(part.retractions for part in parts),
        weight_version=last.weight_version or first.weight_version,
    )

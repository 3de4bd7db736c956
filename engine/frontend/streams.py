"""Several completions as one stream, and server-sent events. Knows no reply format."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import aclosing
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from engine.frontend.completion import Completion, Piece
from engine.frontend.core import Frontend
from engine.frontend.http_errors import HTTPError
from engine.frontend.requests import DuplicateRequestError, NewRequest, QueueFullError
from engine.tokens.tokenizer import Tokenizer

_T = TypeVar("_T")
DONE = b"data: [DONE]\n\n"


def submit_all(
    frontend: Frontend, tokenizer: Tokenizer, requests: Sequence[NewRequest]
) -> list[Completion]:
    """Submit all or none. Raises HTTPError."""
    if frontend.refusal:
        raise HTTPError(503, frontend.refusal, retry_after_s=1)
    if not frontend.requests.has_room(len(requests)):
        raise _full()
    submitted: list[Completion] = []
    try:
        for new in requests:
            submitted.append(Completion(frontend.requests, tokenizer, new))
    except DuplicateRequestError as error:
        _leave_all(submitted)
        raise HTTPError(400, f"Duplicate request ID detected: {error}", param="rid") from error
    except QueueFullError as error:
        _leave_all(submitted)
        raise _full() from error
    return submitted


def _full() -> HTTPError:
    return HTTPError(503, "The request queue is full.", retry_after_s=1)


def _leave_all(completions: Sequence[Completion]) -> None:
    for completion in completions:
        completion.leave()


async def merged(completions: Sequence[Completion]) -> AsyncIterator[tuple[int, Piece]]:
    """Pieces of all completions as they come, each with its index; ends all when left.

    Takes none ahead of its reader: what waits is joined where it waits (TokenQueue).
    """
    if len(completions) == 1:  # as nearly all: no task and no queue between
        async with aclosing(completions[0].pieces()) as pieces:
            async for piece in pieces:
                yield 0, piece
        return
    queue: asyncio.Queue[tuple[int, Piece] | None] = asyncio.Queue(maxsize=1)

    async def pump(index: int, completion: Completion) -> None:
        async for piece in completion.pieces():
            await queue.put((index, piece))
        await queue.put(None)

    tasks = [asyncio.ensure_future(pump(i, c)) for i, c in enumerate(completions)]
    open_count = len(tasks)
    try:
        while open_count:
            item = await queue.get()
            if item is None:
                open_count -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        _leave_all(completions)
        await asyncio.gather(*tasks, return_exceptions=True)


async def unless_gone(request: Request, work: Awaitable[_T]) -> _T | None:
    """The outcome of `work`; None when the client leaves first, which cancels it."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return None
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


def event(body: object) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


class EventStream(StreamingResponse):
    """A reply of server-sent events. Its completions end with it, also when it never began."""

    def __init__(self, items: AsyncIterator[bytes], completions: Sequence[Completion]) -> None:
        super().__init__(
            items,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        self._completions = completions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end, or until the client leaves."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            _leave_all(self._completions)

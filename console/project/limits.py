"""Refuse bodies that are too large before Django spools them to disk."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any  # ASGI messages

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class _TooLarge(Exception):
    """The streamed body passed the limit."""


class BodyLimit:
    """Answers 413 to a declared or streamed body over `max_bytes`, or over that of its path."""

    def __init__(
        self, app: App, max_bytes: int, by_prefix: Mapping[str, int] | None = None
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._by_prefix = by_prefix or {}

    def _limit(self, path: str) -> int:
        found = (most for prefix, most in self._by_prefix.items() if path.startswith(prefix))
        return next(found, self._max_bytes)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass on, counting."""
        max_bytes = self._limit(scope.get("path", ""))
        declared = dict(scope.get("headers", ())).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared[:20]) > max_bytes:
            await self._refuse(scope, send, max_bytes)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > max_bytes:
                raise _TooLarge
            return message

        try:
            await self._app(scope, counted, send)
        except _TooLarge:  # the body is read before anything is answered
            await self._refuse(scope, send, max_bytes)

    async def _refuse(self, scope: Message, send: Send, max_bytes: int) -> None:
        document = {
            "type": "urn:quiesce:problem:body_too_large",
            "title": "Body too large",
            "status": 413,
            "detail": f"the body may have at most {max_bytes} bytes",
            "code": "body_too_large",
            "instance": scope.get("path", ""),
            "request_id": "",
        }
        body = json.dumps(document).encode()
        headers = [
            (b"content-type", b"application/problem+json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            (b"x-content-type-options", b"nosniff"),
        ]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})

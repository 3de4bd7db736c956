"""uvicorn's HTTP/1.1 protocol with the bounds it lacks: on the size of a head, and on the time.

A client that sends half a request and waits holds a socket only for so long; one that sends headers
without end is told so. Bodies are bounded where they are read (http_json).
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
HEAD_S = 20.0
_BODY = b'{"error":{"message":"the request line and headers are larger than 65536 bytes"}}'
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(_BODY), _BODY)
)


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: uvicorn's own signature
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected: its first head is due."""
        super().connection_made(transport)
        self._watch(0)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse; what belongs to a head that is not complete yet is counted."""
        super().data_received(data)
        self._watch(len(data))

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        """A head is complete: the handler takes over."""
        self._in_head, self._head_bytes = False, 0
        super().on_headers_complete()

    def _watch(self, num_bytes: int) -> None:
        if self.transport.is_closing() or not self._waits_for_head():
            self._stop_timer()
            return
        self._head_bytes += num_bytes
        if self._head_bytes > MAX_HEAD_BYTES:
            self.transport.write(_TOO_LARGE)
            self.transport.close()
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self._late)

    def _waits_for_head(self) -> bool:
        return self._in_head or self.cycle is None or self.cycle.response_complete

    def _late(self) -> None:
        self._head_timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._watch(0)  # a reply is under way; the head of the next request may wait for it
        elif self._waits_for_head():
            self.transport.close()

    def _stop_timer(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

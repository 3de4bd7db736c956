"""The frontend's socket to its ranks: each message costs a callback, not a task and a future.

One message a token comes in while a request is streamed alone, and its cost is taken from the cores
that compute the next one. Belongs to one event loop; nothing here blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq

_AT_ONCE = 64  # messages, before others of the loop get their turn


class RankSocket:
    """A ROUTER that the ranks connect to."""

    def __init__(self, address: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 100_000)
        self._socket.setsockopt(zmq.RCVHWM, 100_000)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.bind(address)
        self._fd = int(self._socket.getsockopt(zmq.FD))
        self._heard: Callable[[bytes], None] | None = None
        self._ended: asyncio.Future[None] | None = None
        self._is_due = False

    def close(self) -> None:
        """Give it up; `run` returns."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
            asyncio.get_running_loop().remove_reader(self._fd)  # while it is still one
        self._context.destroy(linger=0)

    def send(self, identity: bytes, frame: bytes) -> bool:
        """Send to a rank's process; False when none of this identity is connected."""
        try:
            self._socket.send_multipart([identity, frame], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        finally:
            self._look_again()
        return True

    async def run(self, heard: Callable[[bytes], None]) -> None:
        """Hand each message to `heard` until closed or cancelled. Raises what `heard` raises."""
        loop = asyncio.get_running_loop()
        self._heard, self._ended = heard, loop.create_future()
        loop.add_reader(self._fd, self._receive)
        try:
            self._receive()  # what came before
            await self._ended
        finally:
            self._ended = None
            if not self._socket.closed:
                loop.remove_reader(self._fd)

    def _look_again(self) -> None:
        """The descriptor tells of news once, and sending may take that away from who reads."""
        if self._ended is None or self._is_due:
            return
        if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._receive)

    def _next(self) -> bytes | None:
        try:
            _, frame = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return frame

    def _receive(self) -> None:
        self._is_due = False
        if self._ended is None or self._ended.done():
            return
        assert self._heard is not None
        try:
            for _ in range(_AT_ONCE):
                frame = self._next()
                if frame is None:
                    return
                self._heard(frame)
        except Exception as error:  # noqa: BLE001  # of whatever kind: it ends `run`
            self._ended.set_exception(error)
            return
        self._look_again()

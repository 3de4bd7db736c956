"""A rank's socket to the frontend: never blocks, loses nothing while the peer lives."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

import zmq

from engine.ipc.messages import FromRankMessage, ToRankMessage
from engine.ipc.wire import decode_to_rank, encode

_RECEIVE_AT_ONCE = 1000


class Mailbox:
    """One DEALER. What the frontend cannot take now waits here and is dropped with its epoch."""

    def __init__(self, address: str, *, rank: int, inc: int) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, identity(rank, inc))
        self._socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing is kept for a frontend to come
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 100_000)
        self._socket.setsockopt(zmq.RCVHWM, 100_000)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        self._socket.connect(address)
        self._backlog: deque[bytes] = deque()
        self._wake_fd, self._waker_fd = os.pipe()  # close-on-exec
        os.set_blocking(self._wake_fd, False)
        os.set_blocking(self._waker_fd, False)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wake_fd, zmq.POLLIN)

    def send(self, message: FromRankMessage) -> None:
        """Queue a message; it goes out now if the frontend takes it."""
        self._backlog.append(encode(message))
        self.flush()

    def send_if_heard(self, message: FromRankMessage) -> None:
        """A heartbeat: not worth keeping when nobody listens."""
        if not self._backlog:
            self._try(encode(message))

    def flush(self) -> None:
        """Send what waits, as far as the frontend takes it."""
        while self._backlog and self._try(self._backlog[0]):
            self._backlog.popleft()

    def forget(self) -> None:
        """The frontend that all this was meant for is gone."""
        self._backlog.clear()

    def receive(self) -> Iterator[ToRankMessage]:
        """Everything that has arrived."""
        for _ in range(_RECEIVE_AT_ONCE):
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield decode_to_rank(frame)

    def wait(self, timeout_s: float) -> None:
        """Sleep until something arrives or `wake` is called, at most so long."""
        if any(fd == self._wake_fd for fd, _ in self._poller.poll(int(timeout_s * 1000))):
            with suppress(BlockingIOError):
                os.read(self._wake_fd, 4096)

    def wake(self) -> None:
        """End a `wait`, now or to come; from any thread."""
        with suppress(BlockingIOError):  # full: it will wake anyway
            os.write(self._waker_fd, b"\0")

    def close(self) -> None:
        """Give the socket up."""
        self._context.destroy(linger=0)
        os.close(self._wake_fd)
        os.close(self._waker_fd)

    def _try(self, frame: bytes) -> bool:
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True


def identity(rank: int, inc: int) -> bytes:
    """How the frontend's ROUTER addresses this very process."""
    return f"rank-{rank}-{inc}".encode()

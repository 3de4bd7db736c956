"""What an isolated backend and its parent say to each other: frames over a socket pair.

A frame is its length in 4 bytes and msgpack. Pages go through shared memory, never through here.
"""

from __future__ import annotations

import socket
import struct
import time

import msgspec

from engine.cache.storage.base import Status

_LENGTH = struct.Struct("<I")
_MAX_BYTES = 1 << 24
STAGE_BYTES = 16 << 20  # for reads, and as much for writes


class Start(msgspec.Struct, frozen=True):
    """The first frame to a child: what it is. Secrets travel in here, not in its arguments."""

    backend: str
    config: bytes  # the config struct as msgpack
    model: str
    identity: bytes
    dp_rank: int
    record_bytes: int
    layout: str
    roots: list[str]
    endpoints: list[str]
    stage_slots: int


class Ask(msgspec.Struct, frozen=True):
    """A call. Its pages lie in the stage, from the first slot of its lane on."""

    call: str  # open, clear, close; exists, get; put, delete
    keys: list[bytes] = []
    time_left_s: float = 0.0


class Answer(msgspec.Struct, frozen=True):
    """What it returned; or an error, and whether it is a StorageError. `is_last`: the library may
    still be at work on the pages of this call, so the child is of no more use."""

    statuses: list[Status] = []
    found: list[bool] = []
    count: int = 0
    error: str = ""
    is_storage_error: bool = False
    is_last: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decoders = {kind: msgspec.msgpack.Decoder(kind) for kind in (Start, Ask, Answer)}


def send(end: socket.socket, frame: Start | Ask | Answer, timeout_s: float | None = None) -> None:
    """Raises OSError."""
    end.settimeout(timeout_s)
    body = _encode(frame)
    end.sendall(_LENGTH.pack(len(body)) + body)


def receive_ask(end: socket.socket) -> Ask:
    """Raises OSError; ConnectionResetError when the other end is gone."""
    ask = _decoders[Ask].decode(_receive(end, None))
    assert isinstance(ask, Ask), "a decoder of another type"
    return ask


def receive_start(end: socket.socket) -> Start:
    start = _decoders[Start].decode(_receive(end, None))
    assert isinstance(start, Start), "a decoder of another type"
    return start


def receive_answer(end: socket.socket, timeout_s: float) -> Answer:
    """Raises TimeoutError when it is not there in time."""
    answer = _decoders[Answer].decode(_receive(end, time.monotonic() + timeout_s))
    assert isinstance(answer, Answer), "a decoder of another type"
    return answer


def _receive(end: socket.socket, deadline: float | None) -> bytes:
    (size,) = _LENGTH.unpack(_exact(end, _LENGTH.size, deadline))
    if size > _MAX_BYTES:
        raise ConnectionResetError("a frame that is too long")
    return _exact(end, size, deadline)


def _exact(end: socket.socket, size: int, deadline: float | None) -> bytes:
    body = bytearray()
    while len(body) < size:
        left = None if deadline is None else max(0.001, deadline - time.monotonic())
        end.settimeout(left)
        try:
            part = end.recv(size - len(body))
        except TimeoutError as error:
            raise TimeoutError("it did not answer in time") from error
        if not part:
            raise ConnectionResetError("its process has ended")
        body += part
    return bytes(body)

"""A client of the Valkey/Redis protocol (RESP2) that moves pages without copying them.

Values go out straight from host memory, and come in straight into it; everything else is small.
Every exchange has a deadline. A connection that failed is closed and never used again: what it
would say next belongs to another question.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass

_SMALL_BYTES = 1 << 16
_VIEWS_AT_ONCE = 128  # of one sendmsg; IOV_MAX is 1024
_ERROR_CHARS = 160
_MAX_ITEMS = 1 << 20  # of an array in a reply


class RespError(Exception):
    """The server answered with an error. `code` is its first word: OOM, LOADING, NOAUTH …"""

    def __init__(self, text: str) -> None:
        super().__init__(text[:_ERROR_CHARS])
        self.code = text.partition(" ")[0][:32]


class RespProtocolError(ConnectionError):
    """The server's answer is not RESP."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens, and who asks. `secret` never reaches a message."""

    host: str = ""
    port: int = 0
    path: str = ""  # of a unix socket, instead
    is_tls: bool = False
    database: int = 0
    username: str = ""
    secret: str = ""

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"Address({self})"


Reply = bytes | int | None | list["Reply"] | RespError


class RespConnection:
    """One connection, signed in. Raises OSError (TimeoutError past the deadline) or RespError."""

    def __init__(self, address: Address, deadline: float) -> None:
        self._socket = _connect(address, deadline)
        self._deadline = deadline
        self._buffer = bytearray(_SMALL_BYTES)
        self._view = memoryview(self._buffer)
        self._low = self._high = 0
        self.has_answered = False  # since the last `begin`
        try:
            self._sign_in(address)
        except BaseException:
            self.close()
            raise

    def _sign_in(self, address: Address) -> None:
        if address.secret:
            user = [address.username.encode()] if address.username else []
            try:
                self.ask([b"AUTH", *user, address.secret.encode()])
            except RespError as error:
                # A server may quote what it was told: only its code is passed on.
                raise RespError(f"{error.code} (the server refuses the user or password)") from None
        if address.database:
            self.ask([b"SELECT", b"%d" % address.database])
        self.ask([b"PING"])

    def begin(self, deadline: float) -> None:
        """All that follows is to be done by then."""
        self._deadline = deadline
        self.has_answered = False

    def ask(self, words: Sequence[bytes]) -> Reply:
        """One command, one reply. Raises RespError for an error."""
        self.send([command(words)])
        reply = self.reply()
        if isinstance(reply, RespError):
            raise reply
        return reply

    def send(self, views: Sequence[bytes | memoryview]) -> None:
        """Send these one after another."""
        left = [memoryview(view) for view in views if len(view)]
        left.reverse()
        while left:
            self._wait()
            if isinstance(self._socket, ssl.SSLSocket):
                sent = self._socket.send(left[-1])
            else:
                sent = self._socket.sendmsg(left[: -_VIEWS_AT_ONCE - 1 : -1])
            while left and sent >= len(left[-1]):
                sent -= len(left.pop())
            if sent:
                left[-1] = left[-1][sent:]

    def value_into(self, page: memoryview) -> int | RespError | None:
        """The reply to a GET: its length, None for no value. Only a value of the page's length
        is written into the page; another one is read and thrown away."""
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            return RespError(rest.decode(errors="replace"))
        if kind != b"$":
            raise RespProtocolError("the server's answer is not RESP")
        size = _number(rest)
        if size < 0:
            return None
        if size == len(page):
            self._exact(page)
        else:
            self._skip(size)
        self._skip(2)
        return size

    def reply(self) -> Reply:
        """Any small reply."""
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b"-":
            return RespError(rest.decode(errors="replace"))
        if kind == b":":
            return _number(rest)
        size = _number(rest)
        if kind == b"$" and size <= _SMALL_BYTES:
            if size < 0:
                return None
            text = bytearray(size)
            self._exact(memoryview(text))
            self._skip(2)
            return bytes(text)
        if kind == b"*" and size <= _MAX_ITEMS:
            return [self.reply() for _ in range(size)]
        raise RespProtocolError("the server's answer is not RESP")

    def close(self) -> None:
        self._socket.close()

    def _wait(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the server did not answer in time")
        self._socket.settimeout(left)

    def _receive(self, view: memoryview) -> int:
        self._wait()
        try:
            count = self._socket.recv_into(view)
        except TimeoutError as error:
            raise TimeoutError("the server did not answer in time") from error
        if not count:
            raise ConnectionResetError("the server has closed the connection")
        self.has_answered = True
        return count

    def _line(self) -> bytes:
        while True:
            end = self._buffer.find(b"\r\n", self._low, self._high)
            if end >= 0:
                line = bytes(self._view[self._low : end])
                self._low = end + 2
                return line
            if self._low:
                held = self._high - self._low
                self._view[:held] = bytes(self._view[self._low : self._high])
                self._low, self._high = 0, held
            if self._high == len(self._buffer):
                raise RespProtocolError("the server's answer is not RESP")
            # Few bytes at a time, so that the value behind this line goes to its page directly.
            until = min(self._high + 64, len(self._buffer))
            self._high += self._receive(self._view[self._high : until])

    def _exact(self, view: memoryview) -> None:
        have = min(len(view), self._high - self._low)
        view[:have] = self._view[self._low : self._low + have]
        self._low += have
        while have < len(view):
            have += self._receive(view[have:])

    def _skip(self, size: int) -> None:
        scrap = memoryview(bytearray(min(size, _SMALL_BYTES)))
        while size:
            part = scrap[: min(size, len(scrap))]
            self._exact(part)
            size -= len(part)


def command(words: Sequence[bytes]) -> bytes:
    """A whole command."""
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


def set_views(key: bytes, value: memoryview, ttl_s: int) -> list[bytes | memoryview]:
    """A SET, its value not copied."""
    tail = b"\r\n"
    if ttl_s:
        seconds = b"%d" % ttl_s
        tail += b"$2\r\nEX\r\n$%d\r\n%s\r\n" % (len(seconds), seconds)
    head = b"*%d\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n" % (
        *(5 if ttl_s else 3, len(key), key),
        len(value),
    )
    return [head, value, tail]


def _number(text: bytes) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise RespProtocolError("the server's answer is not RESP") from error


def _connect(address: Address, deadline: float) -> socket.socket:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("there was no time left to connect")
    if address.path:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.settimeout(left)
            made.connect(address.path)
        except OSError:
            made.close()
            raise
        return made
    made = socket.create_connection((address.host, address.port), left)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if not address.is_tls:
            return made
        made.settimeout(max(0.001, deadline - time.monotonic()))
        # The system's certificates, or those that SSL_CERT_FILE names.
        return ssl.create_default_context().wrap_socket(made, server_hostname=address.host)
    except OSError:
        made.close()
        raise

"""The caller's side of an engine's two sockets: EngineClient (control) and EventStream (events).

Knows the protocol and ZeroMQ, nothing of jobs, databases or event loops. Neither class may be
shared between threads or carried over a fork; the context comes from the caller.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType

import zmq

from engine.protocol import (
    MAX_CONTROL_BYTES,
    MAX_EVENT_BYTES,
    PROTOCOL_VERSION,
    Command,
    ErrorCode,
    Event,
    Failure,
    Hello,
    Progress,
    ProtocolError,
    Reply,
    Request,
    Response,
    Welcome,
    decode_event,
    decode_response,
    encode_request,
)

CONTROL_HWM = 100
EVENTS_HWM = 1000
LINGER_MS = 200  # what an unanswered request may delay a process's end by


@dataclass(frozen=True)
class Curve:
    """Whom to believe, and who one is: Z85. Needed for tcp."""

    server_key: bytes
    public: bytes
    secret: bytes = field(repr=False)

    def guard(self, socket: zmq.Socket[bytes]) -> None:
        """Before connect: nothing is said to whoever does not hold the server's secret key."""
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.server_key)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)
        socket.setsockopt(zmq.IPV6, 1)


class EngineTimeout(Exception):
    """The engine could not be reached, or did not answer in the time allowed."""


def _heartbeat(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3000)
    socket.setsockopt(zmq.HEARTBEAT_TTL, 3000)


class EngineClient:
    """One conversation over a DEALER socket with an identity of its own.

    Lazy Pirate: whoever waited in vain calls `reset`, and the next send uses a new socket, so a
    late answer to a forgotten question can never be taken for the answer to a new one.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        *,
        name: str = "client",
        curve: Curve | None = None,
    ) -> None:
        self._context = context
        self._curve = curve
        self._address = address
        self._name = name
        self._is_greeted = False
        self._socket: zmq.Socket[bytes] | None = None
        self._backlog: deque[Response] = deque()
        self._sent = 0

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop the socket; an unsent request is given LINGER_MS. The client may be used again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._is_greeted = False
        self._backlog.clear()

    def reset(self) -> None:
        """Forget the conversation; the next send opens a new socket."""
        if self._socket is not None:
            self._socket.setsockopt(zmq.LINGER, 0)
        self.close()

    def renew(self) -> bool:
        """Begin another conversation, with its own Hello, on the socket of one that is over.

        False: that is not connected, or something has come that was not received; then `close`.
        """
        self._is_greeted = False
        if self._socket is None or self._backlog:
            return False
        return self._socket.poll(0, zmq.POLLIN | zmq.POLLOUT) == zmq.POLLOUT

    def _open(self) -> zmq.Socket[bytes]:
        if self._socket is None:
            socket = self._context.socket(zmq.DEALER)
            # Options before connect: they do not apply to a connection that exists.
            socket.setsockopt(zmq.IDENTITY, secrets.token_bytes(16))
            socket.setsockopt(zmq.IMMEDIATE, 1)  # never queue for an engine that is not there
            socket.setsockopt(zmq.LINGER, LINGER_MS)
            socket.setsockopt(zmq.SNDHWM, CONTROL_HWM)
            socket.setsockopt(zmq.RCVHWM, CONTROL_HWM)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_CONTROL_BYTES)
            socket.setsockopt(zmq.RECONNECT_IVL, 50)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
            _heartbeat(socket)
            if self._curve is not None:
                self._curve.guard(socket)
            socket.connect(self._address)
            self._socket = socket
        return self._socket

    def send(self, command: Command, *, timeout_s: float) -> str:
        """Send one command, after Hello on a new socket; returns the id its responses carry.

        Raises EngineTimeout when no engine is connected in time; then nothing was sent. Raises
        ProtocolError when the engine does not welcome us.
        """
        if not self._is_greeted and not isinstance(command, Hello):
            self.hello(timeout_s=timeout_s)
        self._sent += 1
        request_id = f"{self._sent}.{secrets.token_hex(8)}"
        frame = encode_request(Request(id=request_id, command=command))
        socket = self._open()
        if not socket.poll(max(0, int(timeout_s * 1000)), zmq.POLLOUT):
            raise EngineTimeout(f"engine unreachable: no connection in {timeout_s:.1f} s")
        try:
            socket.send(frame, zmq.DONTWAIT)
        except zmq.Again as error:  # the peer left between the poll and the send
            raise EngineTimeout("engine unreachable: the connection was lost") from error
        return request_id

    def receive(self, *, timeout_s: float) -> Response | None:
        """The next response of any command, or None. Raises ProtocolError when undecodable."""
        if self._backlog:
            return self._backlog.popleft()
        return self._receive(timeout_s)

    def _receive(self, timeout_s: float) -> Response | None:
        socket = self._open()
        if not socket.poll(max(0, int(timeout_s * 1000)), zmq.POLLIN):
            return None
        frames = socket.recv_multipart(zmq.DONTWAIT)
        if len(frames) != 1:
            raise ProtocolError(ErrorCode.BAD_MESSAGE, f"{len(frames)} frames instead of one")
        return decode_response(frames[0])

    def call(self, command: Command, *, timeout_s: float) -> Reply:
        """Send and wait for this command's reply; a Failure is returned, not raised.

        Responses of other commands are kept for `receive`. After EngineTimeout the socket is new.
        """
        ends = time.monotonic() + timeout_s
        try:
            request_id = self.send(command, timeout_s=timeout_s)
            while (left_s := ends - time.monotonic()) > 0:
                response = self._receive(left_s)
                if response is None:
                    break
                if response.id != request_id:
                    self._backlog.append(response)
                elif not isinstance(response.body, Progress):
                    return response.body
        except EngineTimeout:
            self.reset()
            raise
        self.reset()
        raise EngineTimeout(f"no reply from the engine in {timeout_s:.1f} s")

    def hello(self, *, timeout_s: float) -> tuple[Welcome, float]:
        """Greet: the Welcome, and the monotonic time at which Hello was sent.

        Raises EngineTimeout, or ProtocolError when the engine speaks another version.
        """
        sent_at = time.monotonic()
        reply = self.call(
            Hello(protocol_version=PROTOCOL_VERSION, client=self._name), timeout_s=timeout_s
        )
        if isinstance(reply, Failure):
            raise ProtocolError(reply.code, reply.message)
        if not isinstance(reply, Welcome):
            raise ProtocolError(ErrorCode.BAD_MESSAGE, f"{type(reply).__name__} to Hello")
        if reply.protocol_version != PROTOCOL_VERSION:
            raise ProtocolError(
                ErrorCode.VERSION_MISMATCH,
                f"the engine speaks version {reply.protocol_version}, this is {PROTOCOL_VERSION}",
            )
        self._is_greeted = True
        return reply, sent_at


class EventStream:
    """The engine's published events. Slow readers lose events: a gap in `seq` shows it."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        *,
        curve: Curve | None = None,
    ) -> None:
        self._socket = context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, EVENTS_HWM)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_EVENT_BYTES)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        _heartbeat(self._socket)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        if curve is not None:
            curve.guard(self._socket)
        self._socket.connect(address)

    def receive(self, *, timeout_s: float) -> Event | None:
        """The next event, or None. Raises ProtocolError when undecodable (count it as a gap)."""
        if not self._socket.poll(max(0, int(timeout_s * 1000)), zmq.POLLIN):
            return None
        frames = self._socket.recv_multipart(zmq.DONTWAIT)
        if len(frames) != 1:
            raise ProtocolError(ErrorCode.BAD_MESSAGE, f"{len(frames)} frames instead of one")
        return decode_event(frames[0])

    def close(self) -> None:
        """Unsubscribe."""
        self._socket.close()

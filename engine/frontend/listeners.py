"""The control socket (ROUTER) and the event socket (PUB), bound: ipc, or tcp with CURVE.

Knows no message. Over tcp an Authenticator decides who connects; when one of its keys is taken
away both sockets are bound anew, because a connection that exists is never asked about again.
"""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import zmq
import zmq.asyncio

from engine import keys
from engine.config import ConfigError, EngineConfig
from engine.frontend.authenticator import DOMAIN, Authenticator
from engine.log import get_logger
from engine.protocol import MAX_CONTROL_BYTES

log = get_logger()

_BIND_AGAIN_S, _BIND_TRIES = 0.05, 600
_HANDSHAKE_MS = 5000
_MAX_WAITING = 64  # connections that the kernel keeps until they are taken


class Listeners:
    """Both sockets of one frontend; `control` and `events` are others after `reopen`."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._context = zmq.asyncio.Context()
        self.authenticator: Authenticator | None = None
        self._pair: keys.KeyPair | None = None
        if config.is_tcp:
            self._pair = keys.read(Path(config.curve_key))
            self.authenticator = Authenticator(self._context, config.authorized_keys)
        self.control = self._control()
        self.events = self._events()
        for socket, address in (
            (self.control, config.control_address),
            (self.events, config.events_address),
        ):
            try:
                socket.bind(address)
            except zmq.ZMQError as error:
                self.close()
                raise ConfigError(f"cannot bind {address}: {error.strerror}") from error

    def close(self) -> None:
        """Give the sockets up."""
        self._context.destroy(linger=0)

    async def reopen(self) -> None:
        """Drop every connection: whoever may connect does so by itself."""
        self.control.close()
        self.events.close()
        self.control = self._control()
        await _bind(self.control, self._config.control_address)
        self.events = self._events()
        await _bind(self.events, self._config.events_address)
        log.info("sockets bound anew, for a key was taken away")

    def _control(self) -> zmq.asyncio.Socket:
        socket = self._socket(zmq.ROUTER, self._config.control_address)
        # Answers to a peer that does not read are dropped beyond it: the largest is near 1 MB.
        socket.setsockopt(zmq.SNDHWM, 100)
        socket.setsockopt(zmq.RCVHWM, 1000)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_CONTROL_BYTES)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3000)
        return socket

    def _events(self) -> zmq.asyncio.Socket:
        socket = self._socket(zmq.PUB, self._config.events_address)
        socket.setsockopt(zmq.SNDHWM, 1000)  # a slow subscriber loses events, sees the gap
        return socket

    def _socket(self, kind: int, address: str) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        if address.startswith("tcp://"):
            assert self._pair is not None, "tcp without keys"
            socket.setsockopt(zmq.IPV6, int("[" in address))
            socket.setsockopt(zmq.BACKLOG, _MAX_WAITING)
            socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
            socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._pair.secret)
        return socket


async def _bind(socket: zmq.asyncio.Socket, address: str) -> None:
    """Once the socket before it has let go, which it does on a thread of its own."""
    for left in reversed(range(_BIND_TRIES)):
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            if error.errno != errno.EADDRINUSE or not left:
                raise
            await asyncio.sleep(_BIND_AGAIN_S)
        else:
            return

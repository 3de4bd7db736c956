"""The driver of our own engine: its control socket over ZeroMQ.

One context a process, made at first use and checked by process id, because a context carried over
a fork is undefined; one socket, with an identity of its own, a conversation.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import zmq

from console.exceptions import ConsoleKeyUnusable
from console.gateways.base import Conversation, EngineSilent, Greeting
from console.gateways.keys import console_key_read
from console.gateways.storable import storable
from console.models import Engine
from engine.client import Curve, EngineClient, EngineTimeout
from engine.protocol import Command, ErrorCode, ProtocolError, Reply, Response

log = structlog.get_logger(__name__)

_contexts: dict[int, zmq.Context[zmq.Socket[bytes]]] = {}
_lock = threading.Lock()
# Kept alive on purpose: collecting a context made by a parent would terminate it in the child.
_forgotten: list[zmq.Context[zmq.Socket[bytes]]] = []


def zmq_context() -> zmq.Context[zmq.Socket[bytes]]:
    """This process's context. A child's first use drops, and does not touch, its parent's."""
    pid = os.getpid()
    with _lock:
        if pid not in _contexts:
            _forgotten.extend(_contexts.values())
            _contexts.clear()
            _contexts[pid] = zmq.Context()
        return _contexts[pid]


def curve_of(engine: Engine) -> Curve | None:
    """The keys of a conversation with `engine`; None for one that is reached by ipc alone.

    Raises ConsoleKeyUnusable: nothing is ever said over tcp without keys.
    """
    if engine.curve_key:
        public, secret = console_key_read()
        return Curve(engine.curve_key.encode(), public, secret)
    if "tcp://" in (engine.control_address[:6], engine.events_address[:6]):
        raise ConsoleKeyUnusable(f"engine {engine.name} is registered without its public key")
    return None


class ZMQConversation:
    """EngineClient, with its two ways of being silent told as one."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    def hello(self, *, timeout_s: float) -> Greeting:
        """Greet. Raises EngineSilent, ProtocolError."""
        try:
            welcome, sent_at_s = self._client.hello(timeout_s=timeout_s)
        except EngineTimeout as error:
            raise EngineSilent(str(error)) from error
        return Greeting(welcome=welcome, sent_at_s=sent_at_s)

    def send(self, command: Command, *, timeout_s: float) -> str:
        """Send one command."""
        try:
            return self._client.send(command, timeout_s=timeout_s)
        except (EngineTimeout, ProtocolError) as error:
            raise EngineSilent(str(error)) from error

    def receive(self, *, timeout_s: float) -> Response | None:
        """The next response, or None."""
        try:
            response = self._client.receive(timeout_s=timeout_s)
        except ProtocolError as error:
            raise EngineSilent(f"unreadable answer: {error.message}") from error
        return None if response is None else storable(response)

    def call(self, command: Command, *, timeout_s: float) -> Reply:
        """Send and wait for the one reply."""
        try:
            return storable(self._client.call(command, timeout_s=timeout_s))
        except EngineTimeout as error:
            raise EngineSilent(str(error)) from error
        except ProtocolError as error:
            if error.code is not ErrorCode.BAD_MESSAGE:
                raise
            self._client.reset()
            raise EngineSilent(f"unreadable answer: {error.message}") from error


class ZMQGateway:
    """The `quiesce` driver."""

    @contextmanager
    def converse(self, engine: Engine) -> Iterator[Conversation]:
        """A conversation with `engine` on a socket of its own. Raises ConsoleKeyUnusable."""
        name, curve = f"quiesce-console/{os.getpid()}", curve_of(engine)
        with EngineClient(zmq_context(), engine.control_address, name=name, curve=curve) as client:
            yield ZMQConversation(client)

"""The driver of our own engine: its control socket over ZeroMQ.

One context a process, made at first use and checked by process id, because a context carried over
a fork is undefined; one socket, with an identity of its own, a conversation.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import zmq

from console.clock import monotonic_s
from console.exceptions import ConsoleKeyUnusable
from console.gateways.base import Conversation, EngineSilent, Greeting
from console.gateways.keys import console_key_read
from console.gateways.storable import storable
from console.models import Engine
from engine.client import Curve, EngineClient, EngineTimeout
from engine.protocol import Command, ErrorCode, Progress, ProtocolError, Reply, Response

log = structlog.get_logger(__name__)

KEPT_S = 60.0  # a socket that no conversation has used

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
        self._unanswered: set[str] = set()

    @property
    def is_over(self) -> bool:
        """All that was asked is answered: the socket may serve another conversation."""
        return not self._unanswered

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
            request_id = self._client.send(command, timeout_s=timeout_s)
        except (EngineTimeout, ProtocolError) as error:
            raise EngineSilent(str(error)) from error
        self._unanswered.add(request_id)
        return request_id

    def receive(self, *, timeout_s: float) -> Response | None:
        """The next response, or None."""
        try:
            response = self._client.receive(timeout_s=timeout_s)
        except ProtocolError as error:
            raise EngineSilent(f"unreadable answer: {error.message}") from error
        if response is None:
            return None
        if not isinstance(response.body, Progress):
            self._unanswered.discard(response.id)
        return storable(response)

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


# What a socket that was made for one conversation can be used for again.
_Key = tuple[str, Curve | None]
# With the time since when; the longest kept first.
_Kept = OrderedDict[_Key, tuple[EngineClient, float]]


def _close_own(kept: dict[int, _Kept]) -> None:
    """Those of this process: a parent still uses its own."""
    for one, _ in kept.pop(os.getpid(), _Kept()).values():
        one.close()


class ZMQGateway:
    """The `quiesce` driver. It keeps the socket of a conversation that is over for the next one."""

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}  # by process: a parent's are nothing to its child
        self._lock = threading.Lock()
        weakref.finalize(self, _close_own, self._kept)

    @contextmanager
    def converse(self, engine: Engine) -> Iterator[Conversation]:
        """A conversation with `engine` on a socket that nobody else uses. Raises
        ConsoleKeyUnusable."""
        key = (engine.control_address, curve_of(engine))
        client = self._take(key)
        conversation = ZMQConversation(client)
        try:
            yield conversation
        except BaseException:
            client.close()
            raise
        if conversation.is_over:
            self._keep(key, client)
        else:
            client.close()

    def close(self) -> None:
        """Close what is kept."""
        with self._lock:
            _close_own(self._kept)

    def _take(self, key: _Key) -> EngineClient:
        address, curve = key
        with self._lock:
            client, _ = self._mine().pop(key, (None, 0.0))
        if client is not None:
            if not client.renew():
                client.reset()  # a new socket reaches an engine that was started again sooner
            return client
        name = f"quiesce-console/{os.getpid()}"
        return EngineClient(zmq_context(), address, name=name, curve=curve)

    def _keep(self, key: _Key, client: EngineClient) -> None:
        """In place of one that was kept meanwhile; those that nobody used for long are closed."""
        now = monotonic_s()
        with self._lock:
            kept = self._mine()
            closed = [kept.pop(key)] if key in kept else []
            kept[key] = client, now
            while next(iter(kept.values()))[1] < now - KEPT_S:
                closed.append(kept.popitem(last=False)[1])
        for one, _ in closed:
            one.close()

    def _mine(self) -> _Kept:
        return self._kept.setdefault(os.getpid(), _Kept())

"""What the console needs of any engine driver: conversations with bounded waits.

Knows the protocol's messages, no sockets and no rows but the engine's address.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from console.models import Engine
from engine.protocol import Command, Reply, Response, Welcome


class EngineSilent(Exception):
    """No engine there, or no answer in the time allowed. Says nothing about what it did."""


@dataclass(frozen=True)
class Greeting:
    """Welcome, and when Hello was sent on this process's monotonic clock."""

    welcome: Welcome
    sent_at_s: float


class Conversation(Protocol):
    """Messages with one engine. Not shared between threads. Undecodable answers are silence."""

    def hello(self, *, timeout_s: float) -> Greeting:
        """Greet. Raises EngineSilent, ProtocolError."""
        ...

    def send(self, command: Command, *, timeout_s: float) -> str:
        """Send one command, return the id of its responses. EngineSilent: nothing was sent."""
        ...

    def receive(self, *, timeout_s: float) -> Response | None:
        """The next response, or None. Raises EngineSilent when the answer is unreadable."""
        ...

    def call(self, command: Command, *, timeout_s: float) -> Reply:
        """Send and wait for the one reply; a Failure is returned. Raises EngineSilent."""
        ...


class Gateway(Protocol):
    """A driver."""

    def converse(self, engine: Engine) -> AbstractContextManager[Conversation]:
        """A new conversation; nothing is sent yet. Leaving the context bounds the lingering."""
        ...

"""The one WebSocket endpoint: topics in, versioned readings out.

Readings come from the hub, made once for all who may see the same. Of each topic the newest waits
to be sent, so that a browser that reads nothing costs a reference a topic and holds up nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any  # JSON messages

import structlog
from channels.consumer import get_handler_name
from channels.generic.websocket import AsyncWebsocketConsumer
from django.utils import timezone

from console.consumers.ear import REDIS_AWAY
from console.consumers.hub import LOG_IN, Hub, ends_with
from console.consumers.refusals import socket_refused
from console.consumers.topics import topic_is_known
from console.models import User

log = structlog.get_logger(__name__)

MAX_TOPICS = 32
MAX_MESSAGE_CHARS = 8192
# Topics asked for: each is read for whoever asks. A script that watches one job after another asks
# for thirty a second.
MAX_ASKED_A_SECOND = 60
MAX_ASKED_AT_ONCE = 128
MESSAGE = 0.2  # what a message costs of that, whatever it asks

BAD_MESSAGE = 4400
TRY_LATER = 1013


class LiveConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # Channels has no types
    """One socket of one log-in."""

    channel_layer_alias = "none: the hub hears for all sockets"

    def __init__(self, *, hub: Hub) -> None:
        super().__init__()
        self._hub = hub
        self.session_key = ""
        self.user_id = 0
        self._topics: dict[str, None] = {}
        self._waiting: dict[str, str | _Gone] = {}  # by topic, what is to be sent
        self._ends_with: int | None = None
        self._wake = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self._allowance = float(MAX_ASKED_AT_ONCE)
        self._allowance_at = time.monotonic()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One socket, from its handshake on; however it ends, it leaves nothing behind."""
        try:
            await super().__call__(scope, receive, send)
        finally:  # also after a fault or a cancellation: then Channels calls no `disconnect`
            if self._sender is not None:
                self._sender.cancel()
            if self.session_key:
                await self._hub.leave(self, self._topics)

    async def dispatch(self, message: dict[str, Any]) -> None:
        """As Channels does, but for a look at this thread's database connections: it has none."""
        await getattr(self, get_handler_name(message))(message)

    async def connect(self) -> None:
        """Accept, or close with 4401 when nobody is logged in."""
        user, session = self.scope.get("user"), self.scope.get("session")
        await self.accept()
        if not isinstance(user, User) or session is None or not session.session_key:
            await socket_refused(self.scope, asked="live", code="unauthenticated")
            await self.close(LOG_IN)
            return
        self.user_id, self.session_key = user.pk, session.session_key
        try:
            is_alive = await self._hub.arrive(self)
        except REDIS_AWAY:
            await self.close(TRY_LATER)
            return
        if not is_alive:
            await self.close(LOG_IN)
            return
        await self._say({"type": "hello", "now": timezone.now().isoformat()})
        self._sender = asyncio.create_task(self._send_until_gone())

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """subscribe, unsubscribe, ping; anything else closes with 4400."""
        if self._sender is None:
            return
        message = self._parse(text_data)
        match message:
            case {"type": "ping"}:
                await self._say({"type": "pong", "now": timezone.now().isoformat()})
            case {"type": "subscribe", "topics": list(topics)}:
                try:
                    await self._subscribe(topics)
                except REDIS_AWAY:
                    self.end(TRY_LATER)
            case {"type": "unsubscribe", "topics": list(topics)}:
                for topic in topics:
                    await self._forget(topic)
            case _:
                await self._refuse("unknown message")

    def _parse(self, text: str | None) -> object:
        if text is None or len(text) > MAX_MESSAGE_CHARS or not self._may_ask(MESSAGE):
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return None

    def _may_ask(self, cost: float = 1.0) -> bool:
        now = time.monotonic()
        grown = self._allowance + (now - self._allowance_at) * MAX_ASKED_A_SECOND
        self._allowance = min(float(MAX_ASKED_AT_ONCE), grown) - cost
        self._allowance_at = now
        return self._allowance >= 0

    async def _refuse(self, why: str) -> None:
        await self._say({"type": "error", "message": why})
        self.end(BAD_MESSAGE)

    async def _subscribe(self, topics: list[Any]) -> None:
        for topic in topics:
            is_full = topic not in self._topics and len(self._topics) >= MAX_TOPICS
            if not topic_is_known(topic) or is_full or not self._may_ask():
                await self._refuse("unknown topic, or too many")
                return
            self._topics[topic] = None
            self._waiting.pop(topic, None)  # it is read anew
            await self._hub.watch(self, topic)

    async def _forget(self, topic: Any) -> None:
        if isinstance(topic, str) and topic in self._topics:
            del self._topics[topic]
            self._waiting.pop(topic, None)
            await self._hub.unwatch(self, topic)

    # -- what the hub tells ----------------------------------------------------------------------
    def show(self, topic: str, message: str) -> None:
        """The newest reading waits to be sent; an older one that still did is left out."""
        self._put(topic, message)

    def gone(self, topic: str, *, is_refused: bool) -> None:
        """There is no such thing for them."""
        self._put(topic, _Gone(is_refused))

    def _put(self, topic: str, what: str | _Gone) -> None:
        if not self.has_ended:
            self._waiting[topic] = what
            self._wake.set()

    def fail(self) -> None:
        """The page asks another socket."""
        self.end(TRY_LATER)

    def heard(self, kind: str) -> None:
        """The log-in has ended, or what the person may do has changed: what was shown may not be
        theirs to see any more."""
        code = ends_with(kind)
        if code is not None:
            self.end(code)

    @property
    def has_ended(self) -> bool:
        """Nothing more is sent, but for the code."""
        return self._ends_with is not None

    def end(self, code: int) -> None:
        """Leave out what waits, and close."""
        if self._ends_with is None:
            self._ends_with = code
            self._waiting.clear()
            self._wake.set()

    # -- sending -----------------------------------------------------------------------------------
    async def _send_until_gone(self) -> None:
        """Send until the reader is gone; a fault closes the socket, so that no page goes stale."""
        try:
            await self._send_loop()
        except OSError as error:
            log.debug("reader gone", error=repr(error))
            await self._give_up()
        except Exception as error:
            log.error("live socket failed", exc_info=error)
            await self._give_up()

    async def _give_up(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # closed already
            await self.close(TRY_LATER)

    async def _send_loop(self) -> None:
        while self._ends_with is None:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                topic = next(iter(self._waiting))
                await self._send_topic(topic, self._waiting.pop(topic))
        await self.close(self._ends_with)

    async def _send_topic(self, topic: str, what: str | _Gone) -> None:
        if isinstance(what, str):
            # The clock is that of the moment of sending, however long the reading waited.
            await self.send(text_data=f'{{"now": "{timezone.now().isoformat()}", {what}')
            return
        await self._forget(topic)  # first: whoever asks anew meanwhile is shown it
        if what.is_refused:
            await socket_refused(self.scope, asked=topic, code="not_found")
        await self._say({"type": "gone", "topic": topic})

    async def _say(self, message: dict[str, Any]) -> None:
        await self.send(text_data=json.dumps(message))


class _Gone:
    """In place of a message: there is no such topic for them; `is_refused`: there never was."""

    def __init__(self, is_refused: bool) -> None:
        self.is_refused = is_refused

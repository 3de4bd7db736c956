"""The one WebSocket endpoint: topics in, versioned readings out.

A hint only marks a topic; a task of its own re-reads and sends, so that a slow reader costs one set
of names and never holds up the channel layer. What a lost hint would hide, a slow re-reading finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from typing import Any  # JSON messages

import redis
import structlog
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.sessions.backends.db import SessionStore
from django.db import DatabaseError
from django.utils import timezone

from console.consumers.refusals import socket_refused
from console.consumers.topics import TopicState, topic_is_known, topic_read
from console.models import User
from console.notify import session_group, topic_base, topic_group, user_group
from console.selectors.access import rights_of

log = structlog.get_logger(__name__)

MAX_TOPICS = 32
MAX_MESSAGE_CHARS = 8192
MAX_MESSAGES_A_SECOND = 20
COALESCE_S = 0.05
REST_SHARE = 4.0
RESYNC_S = 4.0
SESSION_CHECK_S = 5.0

BAD_MESSAGE = 4400
LOG_IN = 4401
RIGHTS_CHANGED = 4403
TRY_LATER = 1013
REDIS_AWAY = (redis.RedisError, OSError)


def session_is_alive(session_key: str, user_id: int) -> bool:
    """True while the session and its person are good; read from the database."""
    session = SessionStore(session_key)
    if str(session.get("_auth_user_id", "")) != str(user_id):
        return False
    user = User.objects.filter(pk=user_id, is_active=True).first()
    return user is not None and session.get("_auth_user_hash") == user.get_session_auth_hash()


class LiveConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # Channels has no types
    """One socket of one log-in."""

    async def connect(self) -> None:
        """Accept, or close with 4401 when nobody is logged in."""
        self._topics: dict[str, tuple[int, bytes]] = {}  # topic → version and digest last sent
        self._final: set[str] = set()
        self._dirty: set[str] = set()
        self._wake = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self._allowance = float(MAX_MESSAGES_A_SECOND)
        self._allowance_at = time.monotonic()
        self._groups: set[str] = set()
        user, session = self.scope.get("user"), self.scope.get("session")
        await self.accept()
        if not isinstance(user, User) or session is None or not session.session_key:
            await socket_refused(self.scope, asked="live", code="unauthenticated")
            await self.close(LOG_IN)
            return
        self._user = user
        self._session_key: str = session.session_key
        try:
            await self._join(session_group(self._session_key))
            await self._join(user_group(user.pk))
        except REDIS_AWAY:
            await self.close(TRY_LATER)
            return
        # After joining: a log-out in between would else be missed.
        if not await self._session_is_alive():
            await self.close(LOG_IN)
            return
        await self._say({"type": "hello", "now": timezone.now().isoformat()})
        self._sender = asyncio.create_task(self._send_until_gone())

    async def disconnect(self, code: int) -> None:
        """Stop sending, leave every group."""
        if self._sender is not None:
            self._sender.cancel()
        with contextlib.suppress(*REDIS_AWAY):  # then there is no group to leave
            for group in list(self._groups):
                await self.channel_layer.group_discard(group, self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """subscribe, unsubscribe, ping; anything else closes with 4400."""
        if self._sender is None:
            return
        message = self._parse(text_data)
        match message:
            case {"type": "ping"}:
                await self._say({"type": "pong", "now": timezone.now().isoformat()})
            case {"type": "subscribe" | "unsubscribe" as act, "topics": list(topics)}:
                try:
                    if act == "subscribe":
                        await self._subscribe(topics)
                    else:
                        for topic in topics:
                            await self._forget(topic)
                except REDIS_AWAY:
                    await self.close(TRY_LATER)
            case _:
                await self._say({"type": "error", "message": "unknown message"})
                await self.close(BAD_MESSAGE)

    def _parse(self, text: str | None) -> object:
        now = time.monotonic()
        self._allowance = min(
            float(MAX_MESSAGES_A_SECOND),
            self._allowance + (now - self._allowance_at) * MAX_MESSAGES_A_SECOND,
        )
        self._allowance_at = now
        self._allowance -= 1
        if text is None or len(text) > MAX_MESSAGE_CHARS or self._allowance < 0:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return None

    async def _subscribe(self, topics: list[Any]) -> None:
        """Join first, then read: what changes in between is hinted at."""
        for topic in topics:
            if not topic_is_known(topic) or (
                topic not in self._topics and len(self._topics) >= MAX_TOPICS
            ):
                await self._say({"type": "error", "message": "unknown topic, or too many"})
                await self.close(BAD_MESSAGE)
                return
            await self._join(topic_group(topic))
            self._topics[topic] = (-1, b"")  # send again, also to one who asks again
            self._final.discard(topic)
            self._mark(topic)

    async def _forget(self, topic: Any) -> None:
        if isinstance(topic, str) and self._topics.pop(topic, None) is not None:
            self._final.discard(topic)
            group = topic_group(topic)
            if all(topic_group(other) != group for other in self._topics):
                await self.channel_layer.group_discard(group, self.channel_name)
                self._groups.discard(group)

    async def _join(self, group: str) -> None:
        await self.channel_layer.group_add(group, self.channel_name)
        self._groups.add(group)

    def _mark(self, topic: str) -> None:
        self._dirty.add(topic)
        self._wake.set()

    async def live_hint(self, message: dict[str, Any]) -> None:
        """Something changed."""
        for topic in self._topics:
            if topic_base(topic) == message["topic"]:
                self._mark(topic)

    async def live_closed(self, message: dict[str, Any]) -> None:
        """The log-in has ended."""
        await self.close(LOG_IN)

    async def live_rights(self, message: dict[str, Any]) -> None:
        """What the person may do has changed: what was shown may not be theirs to see any more."""
        await self.close(RIGHTS_CHANGED)

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
        checked_at = time.monotonic()
        while True:
            try:
                pause_s = RESYNC_S * random.uniform(0.8, 1.2)  # noqa: S311  # spread, not secret
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                self._dirty |= set(self._topics) - self._final
            self._wake.clear()
            woken_at = time.monotonic()
            dirty, self._dirty = self._dirty, set()
            try:
                if time.monotonic() - checked_at > SESSION_CHECK_S:
                    checked_at = time.monotonic()
                    if not await self._session_is_alive():
                        await self.close(LOG_IN)
                        return
                for topic in sorted(dirty):
                    await self._refresh(topic)
            except DatabaseError as error:
                log.warning("topic not read", error=repr(error))
                self._dirty |= dirty
            # A large reading is made less often: one socket takes a fifth of a core at most.
            spent_s = time.monotonic() - woken_at
            await asyncio.sleep(max(COALESCE_S, min(RESYNC_S, REST_SHARE * spent_s)))

    async def _refresh(self, topic: str) -> None:
        last = self._topics.get(topic)
        if last is None:
            return
        state = await self._read(topic, last[1])
        if self._topics.get(topic) is not last:
            return  # asked for anew, or no more, meanwhile
        if state is None:
            if last[0] < 0:  # asked for, and never seen
                await socket_refused(self.scope, asked=topic, code="not_found")
            await self._say({"type": "gone", "topic": topic})
            await self._forget(topic)
            return
        if state.version < last[0] or state.digest == last[1]:
            return  # never backwards, never the same twice
        self._topics[topic] = (state.version, state.digest)
        if state.is_final:
            self._final.add(topic)
        await self._say(
            {
                "type": "update",
                "topic": topic,
                "version": state.version,
                "seq": state.seq,
                "now": timezone.now().isoformat(),
                "data": state.data,
                "fragments": state.fragments,
            }
        )

    async def _read(self, topic: str, known: bytes) -> TopicState | None:
        """As the person may see it at this moment."""

        def read() -> TopicState | None:
            user = User.objects.filter(pk=self._user.pk).first()
            return topic_read(topic, rights_of(user), known) if user is not None else None

        state: TopicState | None = await database_sync_to_async(read)()
        return state

    async def _session_is_alive(self) -> bool:
        alive: bool = await database_sync_to_async(session_is_alive)(
            self._session_key, self._user.pk
        )
        return alive

    async def _say(self, message: dict[str, Any]) -> None:
        await self.send(text_data=json.dumps(message))

"""Hears the channel layer for all sockets of this process: one channel, one subscription a group.

Channels gives every socket a channel of its own, so that a hint would be unpacked and handed on
once a socket. Here it is once a process; what hears a group is then called in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any  # a channel layer is known to Channels by name only

import redis
import structlog
from channels.layers import get_channel_layer

from console.notify import topic_group, topics_told

log = structlog.get_logger(__name__)

REDIS_AWAY = (redis.RedisError, OSError)
FAULT_REST_S = 1.0

Heard = Callable[[str], None]  # is told the message's type; must not wait
ALL = ""  # in place of a topic: whatever is sent to the group


def _told(message: dict[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    """(group, of what in it a message tells which kind of news)."""
    everything = (ALL, str(message["type"]))
    if "group" in message:
        return str(message["group"]), [everything]
    return topic_group(message["topic"]), [everything, *topics_told(message)]


class Ear:
    """Belongs to the event loop in which it is first used."""

    def __init__(self) -> None:
        self._channel = ""
        self._opening = asyncio.Lock()
        self._listener: asyncio.Task[None] | None = None
        self._heard_by: dict[str, dict[str, dict[Heard, None]]] = {}  # by group, by topic

    async def join(self, group: str, heard: Heard, topic: str = ALL) -> None:
        """From now on `heard` is called with what is sent to the group, of this topic only.

        It is subscribed when this returns, also where another's join was first. Raises REDIS_AWAY.
        """
        await self._open()
        self._heard_by.setdefault(group, {}).setdefault(topic, {})[heard] = None
        try:
            await get_channel_layer().group_add(group, self._channel)
        except BaseException:
            await self.leave(group, heard, topic)
            raise

    async def leave(self, group: str, heard: Heard, topic: str = ALL) -> None:
        """Not any more; the last one who leaves ends the subscription."""
        topics = self._heard_by.get(group, {})
        others = topics.get(topic, {})
        others.pop(heard, None)
        if not others:
            topics.pop(topic, None)
        if topics:
            return
        self._heard_by.pop(group, None)
        try:
            await get_channel_layer().group_discard(group, self._channel)
        except REDIS_AWAY as error:  # then there is no subscription to end
            log.debug("group not left", group=group, error=repr(error))

    async def _open(self) -> None:
        async with self._opening:
            if not self._channel:
                self._channel = await get_channel_layer().new_channel()
            if self._listener is None or self._listener.done():
                self._listener = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        """For as long as the process lives: without this no hint is heard, so no fault ends it."""
        while True:
            try:
                message = await get_channel_layer().receive(self._channel)
            except Exception as error:
                log.error("hints are not heard", exc_info=error)
                await asyncio.sleep(FAULT_REST_S)
                continue
            try:
                self._hand_on(message)
            except Exception as error:
                log.error("a hint was not understood", exc_info=error)

    def _hand_on(self, message: dict[str, Any]) -> None:
        group, told = _told(message)
        topics = self._heard_by.get(group, {})
        for topic, kind in told:
            for heard in list(topics.get(topic, ())):
                heard(kind)

"""What all sockets of this process share: what is heard, who reads which topic, which log-ins live.

A socket says what it watches and is told what to send; it never reads a topic for itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import structlog
from django.db import DatabaseError, connection

from console.access import Rights
from console.consumers.ear import Ear
from console.consumers.reader import Found, Reader, Watcher
from console.consumers.sessions import LogIn, log_ins_alive
from console.consumers.topics import topic_read_for
from console.notify import CLOSED, RIGHTS, session_group, topic_base, topic_group, user_group

log = structlog.get_logger(__name__)
T = TypeVar("T")

SESSION_CHECK_S = 5.0
LOG_IN = 4401
RIGHTS_CHANGED = 4403


class Socket(Watcher, Protocol):
    """One socket of one log-in."""

    session_key: str

    @property
    def has_ended(self) -> bool:
        """Nothing more is to be told to it."""

    def end(self, code: int) -> None:
        """Tell it nothing more, and close it with this code. Must not wait."""

    def heard(self, kind: str) -> None:
        """Something was said of its log-in or its person: see `ends_with`. Must not wait."""


def ends_with(kind: str) -> int | None:
    """The code that such a message closes a socket with."""
    return {CLOSED: LOG_IN, RIGHTS: RIGHTS_CHANGED}.get(kind)


class Hub:
    """One a process; it belongs to the event loop of its sockets."""

    def __init__(self) -> None:
        self._ear = Ear()
        self._readers: dict[str, Reader] = {}
        self._sockets: dict[Socket, None] = {}
        self._checking: asyncio.Task[None] | None = None
        # One thread, with a connection of its own: readings wait for each other, and requests
        # for none of them.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="live")

    async def arrive(self, socket: Socket) -> bool:
        """Hear of its log-in and its person from now on; False when the log-in has ended.

        Asked after joining: a log-out in between would else be missed. Raises REDIS_AWAY.
        """
        self._sockets[socket] = None
        await self._ear.join(session_group(socket.session_key), socket.heard)
        await self._ear.join(user_group(socket.user_id), socket.heard)
        if self._checking is None:
            self._checking = asyncio.create_task(self._check_log_ins())
        return bool(await self._alive({(socket.session_key, socket.user_id)}))

    async def leave(self, socket: Socket, topics: Collection[str]) -> None:
        """It is gone, and watched these."""
        self._sockets.pop(socket, None)
        for topic in list(topics):
            await self.unwatch(socket, topic)
        await self._ear.leave(session_group(socket.session_key), socket.heard)
        await self._ear.leave(user_group(socket.user_id), socket.heard)
        if not self._sockets and self._checking is not None:
            self._checking.cancel()
            self._checking = None

    async def watch(self, socket: Socket, topic: str) -> None:
        """Show it the topic and each change; once more to one who watches it. Raises REDIS_AWAY."""
        while True:
            reader = self._readers.setdefault(topic, Reader(topic, self._read))
            try:
                # Join first, then read: what changes in between is hinted at.
                await self._ear.join(topic_group(topic), reader.mark, topic_base(topic))
            except BaseException:
                await self._end_unwatched(reader)
                raise
            if self._readers.get(topic) is reader:
                break  # else the last one who watched has left meanwhile
        if not socket.has_ended:
            reader.seat(socket)
        await self._end_unwatched(reader)

    async def unwatch(self, socket: Socket, topic: str) -> None:
        """Show it the topic no more; what is being read is not shown either."""
        reader = self._readers.get(topic)
        if reader is not None:
            reader.leave(socket)
            await self._end_unwatched(reader)

    async def _end_unwatched(self, reader: Reader) -> None:
        if not reader.is_watched and self._readers.get(reader.topic) is reader:
            del self._readers[reader.topic]
            topic = reader.topic
            await self._ear.leave(topic_group(topic), reader.mark, topic_base(topic))

    async def _read(self, topic: str, people: list[int], known: dict[Rights, bytes]) -> Found:
        def read() -> Found:
            began_s = time.monotonic()
            found = topic_read_for(topic, people, known)
            return Found(found, time.monotonic() - began_s)

        return await self._on_thread(read)

    async def _alive(self, log_ins: Collection[LogIn]) -> set[LogIn]:
        return await self._on_thread(lambda: log_ins_alive(log_ins))

    async def _on_thread(self, act: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, _connected, act)

    async def _check_log_ins(self) -> None:
        """Now and then, for what was not heard: a session that ended by itself, a lost hint."""
        while True:
            await asyncio.sleep(SESSION_CHECK_S)
            log_ins = {socket: (socket.session_key, socket.user_id) for socket in self._sockets}
            try:
                alive = await self._alive(set(log_ins.values()))
            except DatabaseError as error:
                log.warning("log-ins not read", error=repr(error))
                continue
            except Exception as error:
                log.error("log-ins cannot be checked", exc_info=error)
                continue
            for socket, log_in in log_ins.items():
                if log_in not in alive:
                    socket.end(LOG_IN)


def _connected(act: Callable[[], T]) -> T:
    """On a connection that is given back after it: requests wait for it."""
    try:
        return act()
    finally:
        connection.close()

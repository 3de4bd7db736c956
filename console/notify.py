"""Group names, and the hints sent to them after a commit: "this changed, read it again".

A hint carries an id, never the state: the channel layer drops messages when it is full. Sending
never blocks and never fails its caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any  # a channel layer is known to Channels by name only

import redis
import structlog
from channels.layers import get_channel_layer
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

log = structlog.get_logger(__name__)

FLEET = "fleet"
JOB = "job"
JOBS = "jobs"
PENDING = "pending"
HINT = "live.hint"  # a topic changed
ENDED = "live.ended"  # it did, and will hardly change again
CLOSED = "live.closed"  # a log-in ended
RIGHTS = "live.rights"  # somebody's roles changed
MAX_PENDING = 1000
ASK_S = 1.0  # how long a command waits for Redis before it goes on without


def fleet_topic(after: str = "", q: str = "") -> str:
    """The topic of one page of the list of engines: behind a name, of those that hold `q`."""
    return f"{FLEET}:{after}:{q}" if after or q else FLEET


def fleet_page_of(topic: str) -> tuple[str, str]:
    """(after, q) of such a topic."""
    _, after, q = (*topic.split(":"), "", "")[:3]
    return after, q


def topic_base(topic: str) -> str:
    """By which hints a topic is marked: each page of the fleet by those of the fleet, and what
    changes the list of jobs may change that of pending ones."""
    if topic == PENDING:
        return JOBS
    return FLEET if topic.startswith(f"{FLEET}:") else topic


def engine_topic(name: str) -> str:
    """The topic of one engine."""
    return f"engine:{name}"


def job_topic(job_id: object) -> str:
    """The topic of one job."""
    return f"{JOB}:{job_id}"


def topic_group(topic: str) -> str:
    """Where a topic's hints are sent: the channel layer allows letters, digits, `-`, `_`, `.` only.

    Those of all jobs are one group, because each also changes the list: one message tells both.
    """
    base = topic_base(topic)
    return "topic." + (JOBS if base.startswith(f"{JOB}:") else base.replace(":", "."))


def topics_told(message: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(topic, kind) of all that a hint marks."""
    topic, kind = str(message["topic"]), str(message["type"])
    told = [(topic_base(topic), kind)]
    return [*told, (JOBS, HINT)] if topic.startswith(f"{JOB}:") else told


def session_group(session_key: str) -> str:
    """The group of all sockets of one session; the key itself must not travel."""
    return "session." + hashlib.sha256(session_key.encode()).hexdigest()[:32]


def user_group(user_id: int) -> str:
    """The group of all sockets of one person."""
    return f"user.{user_id}"


class _Sender:
    """One event loop in one thread a process, so that a hint costs its caller nothing."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._counts = threading.Lock()  # callers are many threads, the loop is another
        self._pending = 0
        self._lost = 0  # since hints were last sent
        threading.Thread(target=self._loop.run_forever, name="hints", daemon=True).start()

    def send(self, group: str, message: dict[str, Any]) -> None:
        with self._counts:
            is_full = self._pending >= MAX_PENDING
            self._pending += not is_full
        if is_full:  # Redis hangs: consumers also re-read by themselves
            self._lose(group, f"{MAX_PENDING} wait to be sent")
            return
        asyncio.run_coroutine_threadsafe(self._send(group, message), self._loop)

    async def _send_twice(self, group: str, message: dict[str, Any]) -> None:
        layer = get_channel_layer()
        try:
            await layer.group_send(group, message)
        except redis.ConnectionError:  # a pooled connection from before a restart of Redis
            await layer.group_send(group, message)

    async def _send(self, group: str, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(5):
                await self._send_twice(group, message)
        except Exception as error:  # noqa: BLE001  # whatever Redis does, a hint may be lost
            self._lose(group, repr(error))
        else:
            self._sent()
        finally:
            with self._counts:
                self._pending -= 1

    def _lose(self, group: str, why: str) -> None:
        """Count it; said once, and again with the number when hints are sent again."""
        with self._counts:
            self._lost += 1
            is_first = self._lost == 1
        if is_first:
            log.warning("hints are lost", group=group, error=why)

    def _sent(self) -> None:
        with self._counts:
            lost, self._lost = self._lost, 0
        if lost:
            log.info("hints are sent again", lost=lost)

    def settle(self, timeout_s: float) -> None:
        ends = time.monotonic() + timeout_s
        while self._pending and time.monotonic() < ends:
            time.sleep(0.005)


_senders: dict[int, _Sender] = {}
_lock = threading.Lock()


_held: ContextVar[list[tuple[str, dict[str, Any]]] | None] = ContextVar("held", default=None)


@contextlib.contextmanager
def held_back() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Collect hints, and send none: for a process that ends, to hand to `sent_now`."""
    hints: list[tuple[str, dict[str, Any]]] = []
    token = _held.set(hints)
    try:
        yield hints
    finally:
        _held.reset(token)


def sent_now(hints: list[tuple[str, dict[str, Any]]]) -> bool:
    """Send what was held back, and wait for it; False, soon, when Redis does not answer."""
    if not hints:
        return True
    try:
        with redis.Redis.from_url(
            settings.REDIS_URL,
            socket_connect_timeout=ASK_S,
            socket_timeout=ASK_S,
            retry=Retry(NoBackoff(), 0),
        ) as client:
            client.ping()
    except redis.RedisError:
        return False
    for group, message in hints:
        _send(group, message)
    settle()
    return True


def _send(group: str, message: dict[str, Any]) -> None:
    held = _held.get()
    if held is not None:
        held.append((group, message))
        return
    pid = os.getpid()
    with _lock:
        if pid not in _senders:
            _senders.clear()
            _senders[pid] = _Sender()
        sender = _senders[pid]
    sender.send(group, message)


def _send_to(group: str, kind: str) -> None:
    """A message that says whom it is for: a process hears all of its groups on one channel."""
    _send(group, {"type": kind, "group": group})


def settle(timeout_s: float = 6.0) -> None:
    """Wait until what was to be sent is sent, or cannot be: for a process that ends after it."""
    sender = _senders.get(os.getpid())
    if sender is not None:
        sender.settle(timeout_s)


def topic_changed(topic: str, kind: str = HINT) -> None:
    """Hint that `topic` is to be read again."""
    _send(topic_group(topic), {"type": kind, "topic": topic})


def job_changed(job_id: object, *, has_ended: bool) -> None:
    """Hint that a job, and so both lists of jobs, changed."""
    topic_changed(job_topic(job_id), ENDED if has_ended else HINT)


def engine_changed(name: str) -> None:
    """Hint that an engine, and so the fleet, changed."""
    topic_changed(engine_topic(name))
    topic_changed(FLEET)


def session_closed(session_key: str) -> None:
    """Close every socket of a session that has ended."""
    _send_to(session_group(session_key), CLOSED)


def user_closed(user_id: int) -> None:
    """Close every socket of a person whose log-ins have ended."""
    _send_to(user_group(user_id), CLOSED)


def user_changed(user_id: int) -> None:
    """Close every socket of a person whose roles changed; their log-in goes on."""
    _send_to(user_group(user_id), RIGHTS)

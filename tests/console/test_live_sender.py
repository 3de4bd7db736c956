"""The sender of a live socket: it never dies quietly, and a reader who left is no fault."""

from __future__ import annotations

import asyncio
import json

import pytest
from django.contrib.sessions.backends.db import SessionStore
from django.db import DatabaseError

from console.consumers import reader
from console.consumers.live import MAX_TOPICS, TRY_LATER, LiveConsumer
from console.models import User
from tests.console.live_sockets import TOPIC, Ears, ScriptedHub, said, until

ASKS = json.dumps({"type": "subscribe", "topics": [TOPIC]})


class Consumer(LiveConsumer):
    """What is sent is kept, or raises `fault`; `stalled` is what a browser does that reads
    nothing."""

    def __init__(self, fault=None):
        super().__init__(hub=ScriptedHub())
        self.fault, self.sent, self.reads = fault, [], asyncio.Event()
        self.reads.set()

    async def base_send(self, message):
        await self.reads.wait()
        if self.fault is not None:
            raise self.fault
        self.sent.append(message)


async def test_a_fault_closes_the_socket_so_that_the_page_asks_anew():
    consumer = Consumer()
    consumer._put(TOPIC, object())  # no message
    await consumer._send_until_gone()
    assert [one["code"] for one in consumer.sent if "code" in one] == [TRY_LATER]


async def test_a_reader_who_left_ends_the_sender_without_a_complaint(caplog):
    consumer = Consumer(OSError("disconnected"))
    consumer.show(TOPIC, '"version": 1}')
    await consumer._send_until_gone()
    assert not [one for one in caplog.records if one.levelname in ("WARNING", "ERROR")]


async def test_of_what_a_stalled_browser_does_not_read_the_newest_waits_a_topic_each():
    consumer = Consumer()
    consumer.reads.clear()
    sender = asyncio.create_task(consumer._send_until_gone())
    for number in range(500):
        for topic in ("fleet", "jobs"):
            consumer.show(topic, f'"of": "{topic}", "version": {number}}}')
            await asyncio.sleep(0)
        assert len(consumer._waiting) <= 2 < MAX_TOPICS
    consumer.reads.set()
    await until(lambda: not consumer._waiting)
    consumer.end(4401)
    await sender
    got = [(one["of"], one["version"]) for one in said(consumer.sent)]
    assert got[-2:] in ([("fleet", 499), ("jobs", 499)], [("jobs", 499), ("fleet", 499)])
    assert len(got) <= 2 + 2, "what was on its way, and the newest of each"


async def test_nothing_is_sent_after_the_end_of_a_stalled_socket_but_its_code():
    consumer = Consumer()
    consumer.reads.clear()
    sender = asyncio.create_task(consumer._send_until_gone())
    for topic in ("fleet", "jobs", TOPIC):
        consumer.show(topic, '"version": 1}')
    await until(lambda: len(consumer._waiting) == 2)  # one is on its way
    consumer.heard("live.rights")
    consumer.show("fleet", '"version": 2}')
    consumer.reads.set()
    await sender
    assert [one["type"] for one in consumer.sent] == ["websocket.send", "websocket.close"]
    assert consumer.sent[-1]["code"] == 4403


@pytest.mark.parametrize("how", ["a fault", "cancelled"])
async def test_a_socket_that_breaks_leaves_nothing_behind(valkey, how):
    """Channels does not say that it is disconnected then; its topic would be read for ever."""
    hub, sent, is_shown = ScriptedHub(), [], asyncio.Event()
    frames = [{"type": "websocket.connect"}, {"type": "websocket.receive", "text": ASKS}]

    async def receive():
        if frames:
            return frames.pop(0)
        await is_shown.wait()
        if how == "a fault":
            raise KeyError
        await asyncio.Event().wait()
        return None

    async def send(message):
        sent.append(message)
        if "update" in message.get("text", ""):
            is_shown.set()

    scope = {"user": User(pk=1), "session": SessionStore("a-session-key"), "client": None}
    socket = asyncio.create_task(LiveConsumer(hub=hub)(scope, receive, send))
    await is_shown.wait()
    assert hub._readers and hub._sockets
    if how == "cancelled":
        socket.cancel()
    with pytest.raises((KeyError, asyncio.CancelledError)):
        await socket
    assert not hub._readers and not hub._sockets and not hub._ear._heard_by
    assert hub._checking is None


async def test_a_topic_that_cannot_be_read_closes_all_who_watch_it_and_no_other(valkey):
    hub, sockets, other = ScriptedHub(), [Ears() for _ in range(3)], Ears()
    await hub.watch(other, "jobs")
    await until(lambda: other.shown)
    hub.fault = KeyError("x")
    for socket in sockets:
        await hub.watch(socket, TOPIC)
    await until(lambda: all(socket.code == TRY_LATER for socket in sockets))
    assert other.code is None
    # They close, and may take their time over it: nothing more is tried for them.
    asked = []
    hub.before = lambda: asyncio.sleep(0, asked.append(1))
    hub._readers[TOPIC].mark()
    hub._readers["jobs"].mark()
    hub.fault = None
    await until(lambda: asked)
    assert len(asked) == 1
    for socket in (*sockets, other):
        await hub.leave(socket, [TOPIC, "jobs"])


async def test_a_database_that_does_not_answer_closes_nothing_and_is_asked_again(
    valkey, monkeypatch
):
    monkeypatch.setattr(reader, "FAULT_REST_S", 0.0)
    hub, socket, asked = ScriptedHub(), Ears(), []

    async def before():
        asked.append(1)
        if len(asked) == 3:
            hub.fault = None

    hub.before, hub.fault = before, DatabaseError("locked")
    await hub.watch(socket, TOPIC)
    await until(lambda: socket.shown)
    assert (len(asked), socket.code) == (3, None)
    await hub.leave(socket, [TOPIC])

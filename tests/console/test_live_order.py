"""A live topic, step by step: a change at any moment is shown, once, and never backwards (L04)."""

from __future__ import annotations

import asyncio

import pytest
from channels.layers import get_channel_layer

from console.consumers import reader
from console.notify import ENDED, HINT, topic_group
from tests.console.live_sockets import TOPIC, Ears, ScriptedHub, until

MOMENTS = ("before it joins", "before it reads", "while it reads", "after it was sent")


class Changing(ScriptedHub):
    """Changes once, at `moment`; its hint goes the way of all hints."""

    def __init__(self, moment):
        super().__init__()
        self.moment = moment

    async def at(self, moment):
        if moment == self.moment and self.version == 1:
            self.version = 2
            await hint()

    async def before(self):
        await self.at("before it reads")

    async def after(self):
        await self.at("while it reads")


async def hint(kind=HINT):
    await get_channel_layer().group_send(topic_group(TOPIC), {"type": kind, "topic": TOPIC})


async def all_heard(hub):
    """A message on the same connection: what was sent before it has been heard."""
    heard = []
    await hub._ear.join("topic.fleet", heard.append)
    await get_channel_layer().group_send("topic.fleet", {"type": HINT, "topic": "fleet"})
    await until(lambda: heard)


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_change_at_any_moment_of_a_subscription_is_shown(moment, valkey):
    hub, socket = Changing(moment), Ears()
    await hub.at("before it joins")
    await hub.watch(socket, TOPIC)
    await until(lambda: socket.shown)
    await hub.at("after it was sent")
    await until(lambda: (TOPIC, 2) in socket.shown)
    assert socket.shown == sorted(set(socket.shown))
    await hub.leave(socket, [TOPIC])


async def test_an_older_reading_is_not_shown_after_a_newer_one(valkey):
    hub, socket = ScriptedHub(), Ears()
    hub.version = 3
    await hub.watch(socket, TOPIC)
    await until(lambda: socket.shown)
    for version in (2, 3, 4):
        seen, hub.version = len(hub.readings), version
        await hint()
        await until(lambda seen=seen: len(hub.readings) > seen)
    await until(lambda: (TOPIC, 4) in socket.shown)
    assert socket.shown == [(TOPIC, 3), (TOPIC, 4)]
    await hub.leave(socket, [TOPIC])


async def test_the_first_change_is_read_at_once_and_a_flood_is_put_together(valkey):
    hub, socket, go_on = ScriptedHub(), Ears(), asyncio.Event()
    await hub.watch(socket, TOPIC)
    await until(lambda: socket.shown)
    hub.before = go_on.wait
    hub.version = 2
    await hint()  # read at once, and held up in the reading
    for _ in range(200):
        await hint()
    await all_heard(hub)
    go_on.set()
    await until(lambda: (TOPIC, 2) in socket.shown)
    hub.version = 3
    await hint()
    await until(lambda: (TOPIC, 3) in socket.shown)
    assert len(hub.readings) <= 1 + 1 + 1 + 1, "the first, the held one, the flood, the last"
    await hub.leave(socket, [TOPIC])


async def test_a_step_that_nobody_could_see_waits_and_an_end_does_not(valkey, monkeypatch):
    monkeypatch.setattr(reader, "GAP_S", 3600.0)
    hub, socket = ScriptedHub(), Ears()
    await hub.watch(socket, TOPIC)
    await until(lambda: socket.shown)
    hub.version = 2
    await hint()
    await all_heard(hub)
    assert socket.shown == [(TOPIC, 1)]
    hub.version = 3
    await hint(ENDED)
    await until(lambda: (TOPIC, 3) in socket.shown)
    hub.version = 4
    await hub.watch(socket, TOPIC)  # whoever comes does not wait either
    await until(lambda: (TOPIC, 4) in socket.shown)
    assert socket.shown == [(TOPIC, 1), (TOPIC, 3), (TOPIC, 4)]
    await hub.leave(socket, [TOPIC])

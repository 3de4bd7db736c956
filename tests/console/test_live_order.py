"""A live socket, step by step: a change at any moment is shown, once, and never backwards (L04)."""

from __future__ import annotations

import asyncio

import pytest

from console.consumers.live import LiveConsumer
from console.consumers.topics import TopicState

TOPIC = "engine:x"
MOMENTS = ("before it joins", "before it reads", "while it reads", "after it was sent")


class Seat(LiveConsumer):
    """A consumer whose topic is a number; `change` is what a commit and its hint do."""

    def __init__(self, moment):
        super().__init__()
        self.moment, self.version, self.sent = moment, 1, []
        self._topics, self._final, self._dirty, self._groups = {}, set(), set(), set()
        self._wake = asyncio.Event()
        self.channel_layer, self.channel_name = self, "me"

    async def change(self):
        """Once; its hint reaches who has joined by then."""
        if self.version > 1:
            return
        self.version = 2
        if self._groups:
            await self.live_hint({"topic": TOPIC})

    async def at(self, moment):
        if moment == self.moment:
            await self.change()

    async def group_add(self, group, name):
        await self.at("before it joins")

    async def _read(self, topic, known):
        await self.at("before it reads")
        found = self.version
        await self.at("while it reads")
        return TopicState(found, str(found).encode(), {}, [], found)

    async def _say(self, message):
        self.sent.append(message["version"])


async def passes(seat):
    """As the sender does: what is dirty is taken, then read. Until nothing is."""
    while seat._dirty:
        dirty, seat._dirty = seat._dirty, set()
        for topic in dirty:
            await seat._refresh(topic)


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_change_at_any_moment_of_a_subscription_is_shown(moment):
    seat = Seat(moment)
    await seat._subscribe([TOPIC])
    await passes(seat)
    await seat.at("after it was sent")
    await passes(seat)
    assert seat.sent[-1] == seat.version == 2
    assert seat.sent == sorted(set(seat.sent))


async def test_an_older_reading_is_not_shown_after_a_newer_one():
    seat = Seat("never")
    seat.version = 3
    await seat._subscribe([TOPIC])
    await passes(seat)
    for version in (2, 3, 4):
        seat.version = version
        await seat.live_hint({"topic": TOPIC})
        await passes(seat)
    assert seat.sent == [3, 4]

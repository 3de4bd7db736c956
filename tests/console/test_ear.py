"""One hint for a change of a job: it marks that job and the lists of jobs, and no other job."""

from __future__ import annotations

import asyncio

import pytest
from channels.layers import get_channel_layer

from console import notify
from console.consumers.ear import Ear
from console.notify import ENDED, HINT, JOBS, topic_base, topic_group, user_group
from tests.console.live_sockets import until

ONE, OTHER = notify.job_topic("1"), notify.job_topic("2")


@pytest.fixture
async def ear(valkey):
    made = Ear()
    yield made
    if made._listener is not None:
        made._listener.cancel()


async def join(ear, *topics):
    """What each of them hears from now on."""
    heard = {topic: [] for topic in topics}
    for topic in topics:
        await ear.join(topic_group(topic), heard[topic].append, topic_base(topic))
    return heard


async def told(ear, group):
    """What was sent to the group before this has been handed on."""
    last = []
    await ear.join(group, last.append)
    await get_channel_layer().group_send(group, {"type": "end", "group": group})
    await until(lambda: last)


async def test_a_change_of_a_job_marks_it_and_the_lists(ear):
    heard = await join(ear, ONE, OTHER, JOBS, notify.PENDING)
    await asyncio.to_thread(notify.job_changed, "1", has_ended=False)
    await until(lambda: heard[notify.PENDING])
    await asyncio.to_thread(notify.job_changed, "2", has_ended=True)
    await until(lambda: len(heard[notify.PENDING]) == 2)
    assert heard[ONE] == [HINT]
    assert heard[OTHER] == [ENDED]
    assert heard[JOBS] == heard[notify.PENDING] == [HINT, HINT], "of a list nothing has ended"


async def test_who_left_hears_nothing_while_others_of_the_group_do(ear):
    mine, theirs = [], []
    await ear.join(topic_group(ONE), mine.append, topic_base(ONE))
    await ear.join(topic_group(ONE), theirs.append, topic_base(ONE))
    heard = await join(ear, OTHER)
    await ear.leave(topic_group(ONE), mine.append, topic_base(ONE))
    await asyncio.to_thread(notify.job_changed, "1", has_ended=False)
    await until(lambda: theirs)
    await ear.leave(topic_group(ONE), theirs.append, topic_base(ONE))
    await asyncio.to_thread(notify.job_changed, "1", has_ended=False)
    await asyncio.to_thread(notify.job_changed, "2", has_ended=False)
    await until(lambda: heard[OTHER])
    assert (mine, theirs) == ([], [HINT])


async def test_what_is_for_a_person_marks_no_topic(ear):
    heard = await join(ear, ONE, JOBS)
    closed = []
    await ear.join(user_group(7), closed.append)
    await asyncio.to_thread(notify.user_changed, 7)
    await until(lambda: closed)
    await told(ear, topic_group(JOBS))
    assert heard == {ONE: [], JOBS: []}

"""One reading for all who may see the same, and nothing by it for anybody else."""

from __future__ import annotations

import asyncio

import pytest
from channels.layers import get_channel_layer

from console import notify
from console.access import EVERYTHING, NOTHING, Grant, Rights, Role
from console.actors import Actor
from console.consumers.topics import topic_read_for
from console.labels import selector_read
from console.selectors.access import rights_of, rights_of_people
from console.services.users import user_create
from tests.console.live_sockets import OTHER, TOPIC, VIEWER, Ears, ScriptedHub, until


async def hint(topic=TOPIC):
    group = notify.topic_group(topic)
    await get_channel_layer().group_send(group, {"type": notify.HINT, "topic": topic})


async def seated(hub, *sockets, topic=TOPIC):
    for socket in sockets:
        await hub.watch(socket, topic)
    await until(lambda: all(socket.shown for socket in sockets))


async def test_sockets_with_the_same_rights_share_a_reading_and_a_subscription(valkey):
    hub, sockets = ScriptedHub(), [Ears(user) for user in (VIEWER, OTHER) * 10]
    await seated(hub, *sockets)
    before, hub.version = len(hub.readings), 2
    await hint()
    await until(lambda: all((TOPIC, 2) in socket.shown for socket in sockets))
    assert [news for _, version, _, news in hub.readings[before:] if version == 2] == [True]
    for socket in sockets[1:]:
        await hub.leave(socket, [TOPIC])
    hub.version = 3
    await hint()
    await until(lambda: (TOPIC, 3) in sockets[0].shown)
    assert all((TOPIC, 3) not in socket.shown for socket in sockets[1:])
    await hub.leave(sockets[0], [TOPIC])
    assert not hub._readers and not hub._ear._heard_by


async def test_other_rights_are_another_reading(valkey):
    hub, mine, theirs = ScriptedHub(), Ears(VIEWER), Ears(OTHER)
    hub.rights = {OTHER: NOTHING}
    await seated(hub, mine, theirs)
    hub.version = 2
    await hint()
    await until(lambda: (TOPIC, 2) in mine.shown and (TOPIC, 2) in theirs.shown)
    read = {rights for _, version, rights, news in hub.readings if version == 2 and news}
    assert read == {EVERYTHING, NOTHING}
    for socket in (mine, theirs):
        await hub.leave(socket, [TOPIC])


async def test_one_whose_rights_are_others_now_is_shown_the_same_state_anew(valkey):
    """The data may be the same and the buttons not; the hint that closes them may be lost."""
    hub, socket = ScriptedHub(), Ears()
    await seated(hub, socket)
    hub.rights = {VIEWER: NOTHING}
    await hint()
    await until(lambda: len(socket.shown) == 2)
    await hub.leave(socket, [TOPIC])


@pytest.mark.parametrize("kind", [notify.RIGHTS, notify.CLOSED])
async def test_whoever_may_not_any_more_is_not_shown_what_was_being_read(valkey, kind):
    """A role is changed while a shared reading is made: the others get it, that person does not."""
    hub, mine, theirs = ScriptedHub(), Ears(VIEWER), Ears(OTHER)
    for socket in (mine, theirs):
        await hub._ear.join(notify.user_group(socket.user_id), socket.heard)
    await seated(hub, mine, theirs)
    reads, go_on = asyncio.Event(), asyncio.Event()

    async def after():
        reads.set()
        await go_on.wait()

    hub.after, hub.version = after, 2
    await hint()
    await reads.wait()
    group = notify.user_group(VIEWER)
    await get_channel_layer().group_send(group, {"type": kind, "group": group})
    await until(lambda: mine.has_ended)
    await hub.unwatch(mine, TOPIC)  # as its disconnecting does
    go_on.set()
    await until(lambda: (TOPIC, 2) in theirs.shown)
    assert (mine.shown, theirs.code) == ([(TOPIC, 1)], None)
    for socket in (mine, theirs):
        await hub.leave(socket, [TOPIC])


async def test_all_leave_while_a_reading_is_made_and_others_come(valkey):
    hub, go_on = ScriptedHub(), asyncio.Event()
    hub.before = go_on.wait
    first = [Ears() for _ in range(5)]
    for socket in first:
        await hub.watch(socket, TOPIC)
    await asyncio.gather(*(hub.leave(socket, [TOPIC]) for socket in first))
    assert not hub._readers
    late = Ears()
    joining = asyncio.gather(*(hub.watch(late, TOPIC) for _ in range(3)))
    go_on.set()
    await joining
    await until(lambda: late.shown)
    hub.version = 2
    await hint()
    await until(lambda: (TOPIC, 2) in late.shown)
    assert all(not socket.shown for socket in first)
    await hub.leave(late, [TOPIC])


async def test_coming_and_going_at_once_loses_nobody_and_leaves_nothing(valkey):
    hub, stays = ScriptedHub(), Ears()

    async def churn():
        for _ in range(20):
            socket = Ears()
            await hub.watch(socket, TOPIC)
            await asyncio.sleep(0)
            await hub.leave(socket, [TOPIC])

    await asyncio.gather(*(churn() for _ in range(10)))
    await asyncio.gather(hub.watch(stays, TOPIC), *(churn() for _ in range(10)))
    hub.version = 2
    await hint()
    await until(lambda: (TOPIC, 2) in stays.shown)
    await hub.leave(stays, [TOPIC])
    assert not hub._readers and not hub._ear._heard_by


def test_rights_are_the_same_without_the_person_but_where_jobs_are_theirs_only():
    viewer, pusher = Grant(Role.VIEWER), Grant(Role.PUSHER, selector_read("name=a"))
    assert Rights(1, (viewer,)).without_person() == Rights(2, (viewer,)).without_person()
    assert Rights(1, (viewer, pusher)).without_person() == Rights(1, (viewer, pusher))
    assert Rights(1, (viewer,)).without_person() != Rights(1, (pusher,)).without_person()


def test_many_peoples_rights_are_each_ones_in_one_query(db, django_assert_num_queries):
    system = Actor.system("test")
    people = [
        user_create(username=f"u{n}", password="a-long-enough-pass", roles=roles, actor=system)
        for n, roles in enumerate([["viewer"], ["operator", "auditor"], [], ["pusher"]])
    ]
    people[0].is_active = False
    people[0].save()
    with django_assert_num_queries(1):
        found = rights_of_people([one.pk for one in people] + [999_999])
    nobody = people.pop(2)
    assert not rights_of(nobody).grants
    assert found == {
        **{one.pk: rights_of(one) for one in people},
        **dict.fromkeys((nobody.pk, 999_999), NOTHING),
    }


def test_a_person_who_is_gone_or_disabled_sees_nothing(user, engine, valkey):
    here = topic_read_for(f"engine:{engine.name}", [user.pk, 999_999], {})
    assert here[user.pk].state is not None and here[999_999].state is None
    user.is_active = False
    user.save()
    assert topic_read_for(f"engine:{engine.name}", [user.pk], {})[user.pk].state is None


def test_what_all_were_sent_is_not_rendered_again(user, engine, valkey):
    topic = f"engine:{engine.name}"
    first = topic_read_for(topic, [user.pk], {})[user.pk]
    assert first.message
    again = topic_read_for(topic, [user.pk], {first.rights: first.state.digest})[user.pk]
    assert (again.message, again.state.digest) == ("", first.state.digest)

"""The relay: a mirror that applies events by number, and a follower on real sockets."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
import zmq

from console.mirror import EngineMirror
from console.models import Engine
from console.relay import PUBLISH_EVERY_S, EngineFollower
from engine.protocol import Event, StateChanged
from tests.fakes.waiting import PATIENCE_S, wait_until


def event_of(engine, seq, epoch=None):
    state = engine.state()
    return Event(epoch=epoch or engine.epoch, seq=seq, clock_s=0.0, body=StateChanged(state=state))


def test_a_mirror_applies_the_next_event_ignores_old_ones_and_reports_gaps(fake_engine):
    mirror = EngineMirror()
    assert not mirror.apply(event_of(fake_engine, 5), 0.0), "no state yet"
    state = fake_engine.state()
    mirror.snapshot(state, 0.0)
    seq = mirror.state.seq
    assert mirror.apply(event_of(fake_engine, seq + 1), 0.0)
    assert mirror.apply(event_of(fake_engine, seq), 0.0)
    assert mirror.state.seq == seq + 1
    assert not mirror.apply(event_of(fake_engine, seq + 3), 0.0)
    assert not mirror.apply(event_of(fake_engine, seq + 2, epoch="other"), 0.0)
    assert mirror.state.seq == seq + 1


def test_a_mirror_is_online_while_news_is_fresh(fake_engine):
    mirror = EngineMirror()
    assert not mirror.is_online(0.0)
    mirror.snapshot(fake_engine.state(), 10.0)
    assert mirror.is_online(11.9)
    assert not mirror.is_online(12.1)


@pytest.fixture
def follow(fake_engine, valkey):
    """A follower of the fake engine, and all that it published."""
    published = []
    context = zmq.Context()
    follower = EngineFollower(
        Engine(
            name=fake_engine.name,
            control_address=fake_engine.control_address,
            events_address=fake_engine.events_address,
        ),
        context,
        lambda name, snapshot: published.append(snapshot),
    )
    follower.start()
    yield follower, published
    follower.stop()
    context.destroy(linger=0)


def last(published):
    return published[-1]


def test_a_follower_sees_busy_and_offline_and_back(fake_engine, follow):
    _, published = follow
    wait_until(lambda: published and last(published).online)
    fake_engine.busy(1)
    wait_until(lambda: not last(published).state.idle)
    fake_engine.stop()
    wait_until(lambda: not last(published).online)
    fake_engine.start()
    wait_until(lambda: last(published).online)
    assert last(published).state.epoch == fake_engine.epoch
    revs = [snapshot.rev for snapshot in published]
    assert revs == sorted(set(revs))


def test_a_gap_is_filled_by_replay(fake_engine, follow):  # Z06
    follower, published = follow
    wait_until(lambda: published and last(published).online)
    with fake_engine._lock:
        fake_engine.skip_events = 3
    for running in (1, 0, 1, 2):
        fake_engine.busy(running)
        time.sleep(0.05)
    wait_until(lambda: last(published).state.ranks[0].running == 2)
    assert follower.mirror.gaps >= 1
    assert follower.mirror.state.seq >= 4


def test_updates_are_put_together(fake_engine, follow):
    _, published = follow
    fake_engine.heartbeat_s = 0.0
    wait_until(lambda: published and last(published).online)
    count, started = len(published), time.monotonic()
    time.sleep(1.0)
    num_published = len(published) - count
    assert num_published <= 2 + (time.monotonic() - started) / PUBLISH_EVERY_S


def test_z06_a_stopped_reader_costs_the_engine_nothing_and_catches_up(short_dir):  # Z06
    """A subscriber that does not read; another that does; the publisher's pace and memory."""
    from engine.client import EVENTS_HWM, EventStream
    from engine.protocol import encode_event
    from tests.fakes.engine import FakeEngine

    engine = FakeEngine(short_dir)
    engine.epoch, engine.seq, engine.pending = "1", 0, None
    context = zmq.Context()
    pub = context.socket(zmq.PUB)
    pub.setsockopt(zmq.SNDHWM, 1000)
    pub.bind(engine.events_address)
    stopped = EventStream(context, engine.events_address)
    quick = EventStream(context, engine.events_address)
    assert stopped._socket.getsockopt(zmq.RCVHWM) == EVENTS_HWM
    frame_of = {}

    def send(seq):
        pub.send(encode_event(Event(epoch="1", seq=seq, clock_s=0.0, body=frame_of["body"])))

    frame_of["body"] = StateChanged(state=engine.state())
    seq = 0
    for stream in (stopped, quick):
        while stream.receive(timeout_s=0.02) is None:
            seq += 1
            send(seq)
    total = 10_000
    seen = []
    done = threading.Event()

    def read():
        while not done.is_set() or seen[-1] < seq + total:
            event = quick.receive(timeout_s=0.2)
            if event is None and done.is_set():
                return
            if event is not None:
                seen.append(event.seq)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, total + 1):
        send(seq + number)  # never waits for a reader: one of them reads nothing until the end
        if number % 100 == 0:
            wait_until(lambda: seen and seen[-1] >= seq + number - 200, every_s=0.001)  # noqa: B023
    done.set()
    reader.join(PATIENCE_S)
    got = []
    while (event := stopped.receive(timeout_s=0.3)) is not None:
        got.append(event.seq)
    # Each side's high-water mark bounds what is kept; the rest is lost, and the numbers show it.
    assert len(got) < total
    assert any(after != before + 1 for before, after in itertools.pairwise(got)) or (
        got[-1] < seq + total
    )
    assert len(seen) >= total, "another reader loses nothing to the stopped one"
    for stream in (stopped, quick):
        stream.close()
    context.destroy(linger=0)

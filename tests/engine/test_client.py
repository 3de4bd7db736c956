"""EngineClient and EventStream against a real ROUTER and PUB."""

from __future__ import annotations

import threading
import time

import pytest
import zmq

from engine.client import EngineClient, EngineTimeout, EventStream
from engine.protocol import (
    Answer,
    FlushCache,
    Hello,
    Mode,
    Progress,
    Query,
    QueryAnswer,
    QueryStatus,
    Snapshot,
    StateAnswer,
    StateChanged,
    Submit,
    Welcome,
)
from tests.fakes.waiting import PATIENCE_S


@pytest.fixture
def context():
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def client(context, fake_engine):
    with EngineClient(context, fake_engine.control_address) as made:
        yield made


def submit(engine, op_id="op-1", timeout_s=PATIENCE_S):
    return Submit(
        op_id=op_id,
        epoch=engine.epoch,
        operation=FlushCache(),
        mode=Mode.WAIT,
        timeout_s=timeout_s,
        start_by_clock_s=engine.clock_s + timeout_s,
    )


def test_hello_is_welcomed_and_says_when_it_was_sent(client, fake_engine):
    before = time.monotonic()
    welcome, sent_at = client.hello(timeout_s=PATIENCE_S)
    assert isinstance(welcome, Welcome)
    assert before <= sent_at <= time.monotonic()
    assert welcome.epoch == fake_engine.epoch


def test_a_new_socket_greets_before_anything_else(client, fake_engine):
    client.call(Snapshot(), timeout_s=PATIENCE_S)
    client.reset()
    client.call(Snapshot(), timeout_s=PATIENCE_S)
    kinds = [type(got.command) for got in fake_engine.received]
    assert kinds == [Hello, Snapshot, Hello, Snapshot]


def test_a_submit_gets_progress_and_one_answer(client, fake_engine):
    fake_engine.busy(1)
    request_id = client.send(submit(fake_engine), timeout_s=PATIENCE_S)
    first = client.receive(timeout_s=PATIENCE_S)
    assert first.id == request_id
    assert isinstance(first.body, Progress)
    fake_engine.idle()
    bodies = []
    while not bodies or not isinstance(bodies[-1], Answer):
        bodies.append(client.receive(timeout_s=PATIENCE_S).body)
    assert client.receive(timeout_s=0.1) is None


def test_a_question_between_does_not_lose_the_answer_to_another(client, fake_engine):
    fake_engine.busy(1)
    request_id = client.send(submit(fake_engine), timeout_s=PATIENCE_S)
    reply = client.call(Query(op_id="op-1", seal=False), timeout_s=PATIENCE_S)
    assert isinstance(reply, QueryAnswer)
    assert reply.status is QueryStatus.OPEN
    fake_engine.idle()
    ids = set()
    while not isinstance((response := client.receive(timeout_s=PATIENCE_S)).body, Answer):
        ids.add(response.id)
    assert ids | {response.id} == {request_id}


def test_z01_an_absent_engine_is_a_timeout_and_gets_nothing_later(context, fake_engine):  # Z01
    fake_engine.stop()
    with EngineClient(context, fake_engine.control_address) as client:
        with pytest.raises(EngineTimeout, match="unreachable"):
            client.send(submit(fake_engine), timeout_s=0.5)
        fake_engine.start()
        time.sleep(0.3)
        assert fake_engine.received == []
        assert client.hello(timeout_s=PATIENCE_S)[0].ready


def test_z01_a_lost_reply_does_not_block_the_next_question(client, fake_engine):  # Z01
    client.hello(timeout_s=PATIENCE_S)
    fake_engine.drop_everything = True
    with pytest.raises(EngineTimeout, match="no reply"):
        client.call(Snapshot(), timeout_s=0.3)
    fake_engine.drop_everything = False
    for _ in range(3):
        assert isinstance(client.call(Snapshot(), timeout_s=PATIENCE_S), StateAnswer)


def test_z01_closing_with_an_unanswered_request_waits_for_nobody(fake_engine):  # Z01
    context = zmq.Context()
    fake_engine.drop_everything = True
    client = EngineClient(context, fake_engine.control_address)
    client.send(Hello(protocol_version=1), timeout_s=PATIENCE_S)
    client.close()
    ending = threading.Thread(target=context.term, daemon=True)
    ending.start()
    ending.join(PATIENCE_S)
    assert not ending.is_alive()


def test_z03_every_socket_has_an_identity_of_its_own_and_returns_at_once(context, fake_engine):
    """Z03: the router never takes one for another that it still knows."""
    clients = [EngineClient(context, fake_engine.control_address) for _ in range(5)]
    for _ in range(3):
        for client in clients:
            client.hello(timeout_s=PATIENCE_S)
        for client in clients:
            client.reset()  # as by a death: the next socket is a new one
    identities = [got.identity for got in fake_engine.received]
    assert len(set(identities)) == 15


def test_z03_no_reply_reaches_another_client(context, fake_engine):  # Z03
    with (
        EngineClient(context, fake_engine.control_address) as one,
        EngineClient(context, fake_engine.control_address) as two,
    ):
        for number in range(20):
            a = one.send(Query(op_id=f"a-{number}"), timeout_s=PATIENCE_S)
            b = two.send(Query(op_id=f"b-{number}"), timeout_s=PATIENCE_S)
            for client, request_id, op_id in ((two, b, f"b-{number}"), (one, a, f"a-{number}")):
                response = client.receive(timeout_s=PATIENCE_S)
                assert (response.id, response.body.op_id) == (request_id, op_id)


def test_options_are_set_before_connecting(client):
    client.hello(timeout_s=PATIENCE_S)
    socket = client._socket
    assert socket.getsockopt(zmq.IMMEDIATE) == 1
    assert socket.getsockopt(zmq.SNDHWM) == socket.getsockopt(zmq.RCVHWM) == 100
    assert 0 <= socket.getsockopt(zmq.LINGER) <= 1000
    assert socket.getsockopt(zmq.HEARTBEAT_IVL) == 1000


def test_events_are_numbered_and_come_without_being_asked_for(context, fake_engine):
    stream = EventStream(context, fake_engine.events_address)
    events = []
    while len(events) < 3:
        event = stream.receive(timeout_s=PATIENCE_S)
        assert event is not None
        events.append(event)
    stream.close()
    assert [event.seq for event in events] == list(
        range(events[0].seq, events[0].seq + len(events))
    )
    assert all(isinstance(event.body, StateChanged) for event in events)

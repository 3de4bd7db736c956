"""A socket whose conversation is over serves the next one, and only then."""

from __future__ import annotations

import pytest

from console.gateways import EngineSilent
from console.gateways.zmq import ZMQGateway
from console.models import Engine
from engine.protocol import (
    Answer,
    FlushCache,
    Hello,
    ListOperations,
    Mode,
    OperationList,
    Snapshot,
    Submit,
)
from tests.fakes.engine import FakeEngine
from tests.fakes.waiting import PATIENCE_S, wait_until


@pytest.fixture
def engine(tmp_path):
    with FakeEngine(tmp_path) as made:
        yield made


@pytest.fixture
def row(engine):
    return Engine(
        name=engine.name,
        control_address=engine.control_address,
        events_address=engine.events_address,
    )


@pytest.fixture
def gateway():
    made = ZMQGateway()
    yield made
    made.close()


def peers(engine):
    """Whom the engine heard, in order, each as often as they said something."""
    return [got.identity for got in engine.received]


def submit(engine):
    return Submit(
        op_id="op-1",
        epoch=engine.epoch,
        operation=FlushCache(),
        mode=Mode.WAIT,
        timeout_s=PATIENCE_S,
        start_by_clock_s=engine.clock_s + PATIENCE_S,
    )


def test_the_next_conversation_greets_anew_on_the_same_socket(gateway, engine, row):
    for _ in range(2):
        with gateway.converse(row) as conversation:
            assert isinstance(
                conversation.call(ListOperations(limit=1), timeout_s=PATIENCE_S), OperationList
            )
    assert [type(got.command) for got in engine.received] == 2 * [Hello, ListOperations]
    assert len(set(peers(engine))) == 1


def test_two_at_once_have_a_socket_each(gateway, engine, row):
    for _ in range(2):
        with gateway.converse(row) as one, gateway.converse(row) as other:
            one.hello(timeout_s=PATIENCE_S)
            other.hello(timeout_s=PATIENCE_S)
    first, second, *again = peers(engine)
    assert first != second
    assert again[0] != again[1]


def test_a_job_that_was_followed_to_its_end_leaves_its_socket(gateway, engine, row):
    with gateway.converse(row) as conversation:
        conversation.send(submit(engine), timeout_s=PATIENCE_S)
        wait_until(lambda: isinstance(conversation.receive(timeout_s=PATIENCE_S).body, Answer))
    with gateway.converse(row) as conversation:
        conversation.hello(timeout_s=PATIENCE_S)
    assert len(set(peers(engine))) == 1


def test_what_was_not_answered_is_not_heard_by_the_next_one(gateway, engine, row):
    engine.busy(1)
    with gateway.converse(row) as conversation:
        conversation.send(submit(engine), timeout_s=PATIENCE_S)
        assert conversation.receive(timeout_s=PATIENCE_S) is not None  # its progress
    with gateway.converse(row) as conversation:
        conversation.hello(timeout_s=PATIENCE_S)
        engine.idle()
        wait_until(lambda: engine.journal.finished)
        assert conversation.receive(timeout_s=0.2) is None
    assert len(set(peers(engine))) == 2


def test_a_fault_in_a_conversation_ends_its_socket(gateway, engine, row):
    with pytest.raises(ZeroDivisionError), gateway.converse(row) as conversation:
        conversation.hello(timeout_s=PATIENCE_S)
        _ = 1 / 0
    with gateway.converse(row) as conversation:
        conversation.hello(timeout_s=PATIENCE_S)
    assert len(set(peers(engine))) == 2


def test_an_engine_that_was_started_again_is_greeted(gateway, engine, row):
    with gateway.converse(row) as conversation:
        first = conversation.hello(timeout_s=PATIENCE_S).welcome
    engine.restart()
    with gateway.converse(row) as conversation:
        second = conversation.hello(timeout_s=PATIENCE_S).welcome
    assert second.epoch != first.epoch


def test_an_engine_that_is_gone_is_silent_at_once_and_found_when_it_is_back(gateway, engine, row):
    with gateway.converse(row) as conversation:
        conversation.hello(timeout_s=PATIENCE_S)
    engine.stop()
    with gateway.converse(row) as conversation, pytest.raises(EngineSilent):
        conversation.call(Snapshot(), timeout_s=0.3)
    engine.start()
    with gateway.converse(row) as conversation:
        conversation.hello(timeout_s=PATIENCE_S)
    assert [type(got.command) for got in engine.received] == [Hello, Hello]


def test_a_socket_that_nobody_used_for_long_is_closed(gateway, engine, row, tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("console.gateways.zmq.monotonic_s", lambda: now[0])
    with gateway.converse(row) as conversation:
        conversation.hello(timeout_s=PATIENCE_S)
    now[0] += 61.0
    with FakeEngine(tmp_path) as another:
        other = Engine(name=another.name, control_address=another.control_address)
        with gateway.converse(other) as conversation:
            conversation.hello(timeout_s=PATIENCE_S)
    with gateway.converse(row) as conversation:
        conversation.hello(timeout_s=PATIENCE_S)
    assert len(set(peers(engine))) == 2

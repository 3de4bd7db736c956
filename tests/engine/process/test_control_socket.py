"""The control socket and event stream of a real engine, through the real client and by hand."""

from __future__ import annotations

import itertools
import random
import time
import uuid
from collections.abc import Callable, Iterator

import msgspec
import pytest
import zmq

from engine.protocol import (
    MAX_CONTROL_BYTES,
    PROTOCOL_VERSION,
    Answer,
    Event,
    EventList,
    Failure,
    FlushCache,
    Hello,
    ListOperations,
    Mode,
    OperationEnded,
    OperationList,
    Outcome,
    Progress,
    Query,
    QueryAnswer,
    QueryStatus,
    Replay,
    Request,
    Response,
    Snapshot,
    StateAnswer,
    StateChanged,
    Submit,
    Welcome,
    decode_event,
    decode_response,
    encode_request,
)
from engine.protocol.commands import Command
from tests.fakes.engine_process import EngineProcess
from tests.fakes.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.process


class Peer:
    """A DEALER by hand."""

    def __init__(self, engine: EngineProcess) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(f"ipc://{engine.dir}/run/control.sock")
        self.events = self.context.socket(zmq.SUB)
        self.events.linger = 0
        self.events.connect(f"ipc://{engine.dir}/run/events.sock")
        self.events.subscribe(b"")

    def send(self, command: Command) -> str:
        request_id = uuid.uuid4().hex
        self.socket.send(encode_request(Request(id=request_id, command=command)))
        return request_id

    def receive(self) -> Response:
        assert self.socket.poll(int(PATIENCE_S * 1000)), "no answer"
        return decode_response(self.socket.recv())

    def ask(self, command: Command) -> object:
        """The answer; how an operation gets on is not heard."""
        request_id = self.send(command)
        while isinstance((response := self.receive()).body, Progress):
            assert response.id == request_id
        assert response.id == request_id
        return response.body

    def hello(self) -> Welcome:
        welcome = self.ask(Hello(protocol_version=PROTOCOL_VERSION))
        assert isinstance(welcome, Welcome)
        return welcome

    def event(self) -> Event:
        assert self.events.poll(int(PATIENCE_S * 1000)), "no event"
        return decode_event(self.events.recv())


@pytest.fixture
def connect(engine: EngineProcess) -> Iterator[Callable[[], Peer]]:
    """Makes peers, and closes them all at the end."""
    peers: list[Peer] = []

    def make() -> Peer:
        peers.append(Peer(engine))
        return peers[-1]

    yield make
    for peer in peers:
        peer.context.destroy(linger=0)


@pytest.fixture
def peer(connect: Callable[[], Peer]) -> Peer:
    return connect()


def submit(welcome: Welcome, op_id: str, timeout_s: float = 600, **more: object) -> Submit:
    fields: dict[str, object] = {
        "op_id": op_id,
        "epoch": welcome.epoch,
        "operation": FlushCache(),
        "mode": Mode.WAIT,
        "timeout_s": timeout_s,
        "start_by_clock_s": welcome.clock_s + max(timeout_s, 600.0),
        **more,
    }
    return Submit(**fields)  # type: ignore[arg-type]


def test_a_flush_goes_from_hello_to_answer(peer: Peer) -> None:
    answer = peer.ask(submit(peer.hello(), uuid.uuid4().hex))
    assert isinstance(answer, Answer)
    assert answer.result.outcome is Outcome.SUCCEEDED


def test_a_waiting_flush_tells_progress_and_goes_on_without_its_caller(
    engine: EngineProcess, peer: Peer, connect: Callable[[], Peer]
) -> None:
    work = engine.busy(250)
    op_id = uuid.uuid4().hex
    peer.send(submit(peer.hello(), op_id))
    assert isinstance(peer.receive().body, Progress)
    peer.socket.close()
    work.result()
    wait_until(lambda: not engine.operations()["open"])
    second = connect()
    found = second.ask(Query(op_id=op_id))
    assert isinstance(found, QueryAnswer)
    assert found.status is QueryStatus.FINISHED
    again = second.ask(submit(second.hello(), op_id))
    assert isinstance(again, Answer)
    assert found.result is not None
    assert msgspec.msgpack.encode(again.result) == msgspec.msgpack.encode(found.result)


def test_refusals_carry_a_code(peer: Peer) -> None:
    welcome = peer.hello()
    cases = [
        (Hello(protocol_version=99), "version_mismatch"),
        (submit(msgspec.structs.replace(welcome, epoch="0-old"), "a1"), "stale_epoch"),
        (submit(welcome, "a2", start_by_clock_s=welcome.clock_s - 1), "too_late"),
        (submit(welcome, "a3", 0, mode=Mode.DRAIN), "invalid_argument"),
    ]
    for command, code in cases:
        failure = peer.ask(command)
        assert isinstance(failure, Failure), failure
        assert failure.code == code
    sealed = peer.ask(Query(op_id="never-came"))
    assert isinstance(sealed, QueryAnswer)
    assert sealed.status is QueryStatus.NEVER
    refused = peer.ask(submit(welcome, "never-came"))
    assert isinstance(refused, Failure)
    assert refused.code == "sealed"


def test_hostile_frames_end_nothing(
    engine: EngineProcess, peer: Peer, connect: Callable[[], Peer]
) -> None:
    rng = random.Random(5)
    good = encode_request(Request(id="x", command=submit(peer.hello(), "fuzz", 1)))
    frames = [b"", b"\x91" * 100_000, rng.randbytes(2000), good[:-3], b"\xc1"]
    for _ in range(300):
        changed = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        frames.append(bytes(changed))
    for frame in frames:
        peer.socket.send(frame)
    peer.socket.send_multipart([b"two", b"frames"])
    assert isinstance(connect().hello(), Welcome)
    big = connect()
    big.socket.send(b"x" * (MAX_CONTROL_BYTES + 1))
    time.sleep(0.2)
    assert isinstance(connect().hello(), Welcome)
    assert engine.is_itself()


def test_events_are_numbered_and_a_snapshot_joins_them(engine: EngineProcess, peer: Peer) -> None:
    first = peer.event()
    snapshot = peer.ask(Snapshot())
    assert isinstance(snapshot, StateAnswer)
    assert snapshot.state.epoch == first.epoch
    assert snapshot.state.seq >= first.seq
    op_id = uuid.uuid4().hex
    engine.flush(op_id=op_id)
    last, seen = first.seq, []
    while not any(isinstance(body, OperationEnded) for body in seen):
        event = peer.event()
        assert event.seq == last + 1
        last = event.seq
        seen.append(event.body)
    replay = peer.ask(Replay(epoch=first.epoch, after_seq=first.seq))
    assert isinstance(replay, EventList)
    assert replay.complete
    assert [event.seq for event in replay.events][: last - first.seq] == list(
        range(first.seq + 1, last + 1)
    )
    gone = peer.ask(Replay(epoch="0-other", after_seq=1))
    assert isinstance(gone, EventList)
    assert not gone.complete


def test_a_heartbeat_comes_unasked_and_tells_that_work_began(
    engine: EngineProcess, peer: Peer
) -> None:
    stamps = [peer.event() for _ in range(4)]
    assert all(a.clock_s < b.clock_s for a, b in itertools.pairwise(stamps))
    work = engine.busy(100)

    def busy_event() -> bool:
        body = peer.event().body
        return isinstance(body, StateChanged) and not body.state.idle

    wait_until(busy_event)
    work.result()


def test_operations_are_listed(engine: EngineProcess, peer: Peer) -> None:
    engine.flush(op_id=f"listed-{uuid.uuid4().hex}")
    listed = peer.ask(ListOperations())
    assert isinstance(listed, OperationList)
    assert listed.finished[0].op_id.startswith("listed-")


def test_a_flood_of_one_peer_leaves_room_for_everybody_else(
    engine: EngineProcess, connect: Callable[[], Peer]
) -> None:
    flood, other = connect(), connect()
    flood.socket.sndhwm = 100_000
    frame = encode_request(Request(id="x", command=ListOperations(limit=200)))
    for _ in range(10):
        for _ in range(1000):  # it never reads an answer
            flood.socket.send(frame)
        assert isinstance(other.hello(), Welcome)
        assert engine.client.get("/ping").status_code == 200
    assert engine.is_itself()


def test_many_peers_are_answered(connect: Callable[[], Peer]) -> None:
    peers = [connect() for _ in range(60)]
    sent = [peer.send(Hello(protocol_version=PROTOCOL_VERSION)) for peer in peers]
    assert [peer.receive().id for peer in peers] == sent


def test_a_subscriber_that_does_not_read_costs_another_one_nothing(
    engine: EngineProcess, connect: Callable[[], Peer]
) -> None:  # Z06
    asleep, awake = connect(), connect()
    asleep.events.rcvhwm = 1
    last = awake.event().seq
    for index in range(60):
        engine.flush(op_id=f"z06-{index}-{uuid.uuid4().hex}"[:60])
        while awake.events.poll(0):
            event = decode_event(awake.events.recv())
            assert event.seq == last + 1
            last = event.seq
    snapshot = awake.ask(Snapshot())
    assert isinstance(snapshot, StateAnswer)
    while last < snapshot.state.seq:
        event = awake.event()
        assert event.seq == last + 1
        last = event.seq

"""A subscriber that reads nothing costs the engine a bounded backlog, and others no event (Z06)."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from types import SimpleNamespace

import zmq

from engine.client import EventStream
from engine.config import EngineConfig
from engine.frontend.control_server import ControlServer
from engine.frontend.event_log import EventLog
from engine.protocol import EngineState, StateChanged, decode_event
from tests.fakes.waiting import PATIENCE_S

EVENTS = 5000
AT_ONCE = 100
KEPT = 2000  # far fewer than were sent; the two high-water marks and a system's buffer are below it


def server_in(folder: Path) -> ControlServer:
    """Over as much of a frontend as publishing needs."""
    config = EngineConfig(
        model_path="/nowhere",
        run_dir=str(folder),
        journal_path=str(folder / "journal"),
        ext_cache_dir="",
        weights_dir="",
    )
    frontend = SimpleNamespace(config=config, events=EventLog("1-test"), publish=None)
    return ControlServer(frontend)  # type: ignore[arg-type]


def news() -> StateChanged:
    """Large, so that the system's own buffers hold few."""
    state = EngineState(
        engine_id="test-engine", epoch="1-test", seq=0, clock_s=0.0, model="m" * 2000, version="v",
        idle=True, ranks=[], pending_operation=None, held_requests=0, http_address="",
    )  # fmt: skip
    return StateChanged(state=state)


def read_to(stream: EventStream, seq: int) -> list[int]:
    """The numbers that come until `seq` has."""
    seen: list[int] = []
    while not seen or seen[-1] < seq:
        event = stream.receive(timeout_s=PATIENCE_S)
        assert event is not None
        seen.append(event.seq)
    return seen


async def published(server: ControlServer, count: int) -> int:
    """Publish so many; the number of the last."""
    for _ in range(count):
        server.publish(news())
    await asyncio.sleep(0)
    return server._frontend.events.seq


async def test_a_stopped_subscriber_is_cut_off_and_another_loses_nothing(short_dir: Path) -> None:
    server, context = server_in(short_dir), zmq.Context()
    address = server._listeners.events.get_string(zmq.LAST_ENDPOINT)
    stopped = context.socket(zmq.SUB)
    stopped.rcvhwm, stopped.linger = 1, 0
    stopped.subscribe(b"")
    stopped.connect(address)
    awake = EventStream(context, address)
    try:
        while not (stopped.poll(0) and awake._socket.poll(0)):
            await published(server, 1)
            await asyncio.sleep(0.01)
        began = await published(server, 1)
        await asyncio.to_thread(read_to, awake, began)
        seen = [began]
        for _ in range(EVENTS // AT_ONCE):
            seen += await asyncio.to_thread(read_to, awake, await published(server, AT_ONCE))
        assert seen == list(range(began, began + EVENTS + 1))
        got = []
        while stopped.poll(300):
            got.append(decode_event(stopped.recv()).seq)
    finally:
        awake.close()
        context.destroy(linger=0)
        server.close()
    assert len(got) < KEPT
    assert got == sorted(set(got))
    lost = [after for before, after in itertools.pairwise(got) if after != before + 1]
    assert lost or got[-1] < began + EVENTS, "and the numbers show it"

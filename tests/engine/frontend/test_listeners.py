"""Control and event sockets over tcp with CURVE: who is let in, who is not, and when no more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog
import zmq

from engine import keys
from engine.client import Curve, EngineClient, EngineTimeout, EventStream
from engine.config import ConfigError, EngineConfig
from engine.frontend.control_server import ControlServer
from engine.frontend.event_log import EventLog
from engine.protocol import EngineState, StateChanged, Welcome
from tests.fakes.stack import free_port
from tests.fakes.waiting import PATIENCE_S

STRANGER_WAITS_S = 0.7  # far longer than a welcome takes, and no bound on it


def pair() -> keys.KeyPair:
    public, secret = zmq.curve_keypair()
    return keys.KeyPair(public, secret)


class Site:
    """A ControlServer on two tcp ports, over as much of a frontend as Hello needs."""

    def __init__(self, folder: Path) -> None:
        self.server_key = keys.make(folder).public
        self.console = pair()
        self.authorized = folder / "authorized-keys"
        self.allow(self.console)
        self.config = EngineConfig(
            model_path="/nowhere",
            run_dir=str(folder),
            journal_path=str(folder / "journal"),
            ext_cache_dir="",
            weights_dir="",
            control_tcp=f"tcp://127.0.0.1:{free_port()}",
            events_tcp=f"tcp://127.0.0.1:{free_port()}",
            curve_key=str(folder / "engine-curve"),
            authorized_keys=str(self.authorized),
        )
        self.frontend = SimpleNamespace(
            config=self.config,
            publish=None,
            operations=None,
            epoch=SimpleNamespace(text="1-test"),
            events=EventLog("1-test"),
            journal=SimpleNamespace(index=SimpleNamespace(engine_id="test-engine")),
            coordinator=SimpleNamespace(is_ready=True),
        )
        self.context = zmq.Context()
        self.clients: list[EngineClient] = []

    def allow(self, *pairs: keys.KeyPair) -> None:
        lines = [f"{each.public.decode()} console-{i}" for i, each in enumerate(pairs)]
        self.authorized.write_text("# consoles\n\n" + "\n".join(lines) + "\n")

    def curve(self, who: keys.KeyPair, server_key: bytes = b"") -> Curve:
        return Curve(server_key or self.server_key, who.public, who.secret)

    def client(self, curve: Curve | None) -> EngineClient:
        self.clients.append(EngineClient(self.context, self.config.control_address, curve=curve))
        return self.clients[-1]

    def close(self) -> None:
        for client in self.clients:
            client.reset()
        self.context.destroy(linger=0)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


@contextlib.asynccontextmanager
async def serving(site: Site) -> AsyncIterator[tuple[ControlServer, asyncio.Task[None]]]:
    server = ControlServer(site.frontend)  # type: ignore[arg-type]
    running = asyncio.create_task(server.run())
    try:
        yield server, running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        server.close()


async def is_welcome(client: EngineClient, timeout_s: float) -> bool:
    """Whether the engine answers; the client's socket is a new one if not."""
    try:
        welcome, _ = await asyncio.to_thread(client.hello, timeout_s=timeout_s)
    except EngineTimeout:
        return False
    return isinstance(welcome, Welcome)


async def welcomed_at_last(client: EngineClient) -> bool:
    gives_up_at = asyncio.get_running_loop().time() + PATIENCE_S
    while not await is_welcome(client, 2.0):
        assert asyncio.get_running_loop().time() < gives_up_at
    return True


def news() -> StateChanged:
    return StateChanged(
        state=EngineState(
            engine_id="test-engine", epoch="1-test", seq=0, clock_s=0.0, model="m", version="v",
            idle=True, ranks=[], pending_operation=None, held_requests=0, http_address="",
        )
    )  # fmt: skip


async def hears(server: ControlServer, stream: EventStream, tries: int) -> bool:
    """Whether a subscriber gets any of so many events."""
    for _ in range(tries):
        server.publish(news())
        if await asyncio.to_thread(stream.receive, timeout_s=0.05) is not None:
            return True
    return False


FOR_LONG = int(PATIENCE_S / 0.05)
STRANGER_TRIES = int(STRANGER_WAITS_S / 0.05)


async def test_the_right_keys_are_served_on_both_sockets(site: Site) -> None:
    async with serving(site) as (server, _):
        curve = site.curve(site.console)
        assert await welcomed_at_last(site.client(curve))
        stream = EventStream(site.context, site.config.events_address, curve=curve)
        assert await hears(server, stream, FOR_LONG)
        stream.close()


@pytest.mark.parametrize("who", ["stranger", "plain", "wrong server key"])
async def test_everybody_else_is_served_on_neither(site: Site, who: str) -> None:
    curve = {
        "stranger": site.curve(pair()),
        "plain": None,
        "wrong server key": site.curve(site.console, pair().public),
    }[who]
    async with serving(site) as (server, _):
        stream = EventStream(site.context, site.config.events_address, curve=curve)
        assert not await is_welcome(site.client(curve), STRANGER_WAITS_S)
        assert not await hears(server, stream, STRANGER_TRIES)
        assert await welcomed_at_last(site.client(site.curve(site.console))), "it serves others"
        stream.close()


async def test_refused_peers_are_logged_and_not_each_time(site: Site) -> None:
    stranger = pair()
    with structlog.testing.capture_logs() as logs:
        async with serving(site):
            for _ in range(3):
                assert not await is_welcome(site.client(site.curve(stranger)), 0.3)
    refused = [line for line in logs if line["event"] == "peer refused"]
    assert len(refused) == 1
    assert stranger.public.decode() in refused[0]["reason"]
    assert refused[0]["address"] == "127.0.0.1"


async def test_a_key_that_is_added_is_let_in_and_one_that_is_taken_away_is_cut_off(
    site: Site,
) -> None:
    second = pair()
    async with serving(site) as (server, _):
        first_client, second_client = site.client(site.curve(site.console)), None
        stream = EventStream(
            site.context, site.config.events_address, curve=site.curve(site.console)
        )
        assert await welcomed_at_last(first_client)
        assert await hears(server, stream, FOR_LONG)
        site.allow(site.console, second)
        second_client = site.client(site.curve(second))
        assert await welcomed_at_last(second_client)
        assert await is_welcome(first_client, PATIENCE_S), "an added key disturbs nobody"

        site.allow(second)
        gives_up_at = asyncio.get_running_loop().time() + PATIENCE_S
        while await is_welcome(first_client, STRANGER_WAITS_S):  # on the connection that it had
            assert asyncio.get_running_loop().time() < gives_up_at
        while stream.receive(timeout_s=0) is not None:
            continue  # what was sent before
        assert not await hears(server, stream, STRANGER_TRIES)
        assert await welcomed_at_last(second_client), "who is still named connects again"
        stream.close()


async def test_without_its_file_nobody_is_let_in(site: Site) -> None:
    async with serving(site):
        assert await welcomed_at_last(site.client(site.curve(site.console)))
        site.authorized.unlink()
        client = site.client(site.curve(site.console))
        assert not await is_welcome(client, STRANGER_WAITS_S)
        site.allow(site.console)
        assert await welcomed_at_last(client)


async def test_when_the_authenticator_ends_nobody_is_served_and_the_frontend_ends(
    site: Site,
) -> None:
    async with serving(site) as (server, running):
        client = site.client(site.curve(site.console))
        assert await welcomed_at_last(client)
        authenticator = server._listeners.authenticator
        assert authenticator is not None
        authenticator.close()  # its pending recv is cancelled, as a fault in it would end it
        with pytest.raises(RuntimeError, match="authenticator ended"):
            await running
        assert not await is_welcome(site.client(site.curve(site.console)), STRANGER_WAITS_S)
        assert not await is_welcome(client, STRANGER_WAITS_S)


@pytest.mark.parametrize("is_closed", [False, True], ids=["stuck", "gone"])
async def test_sockets_without_an_answering_authenticator_serve_nobody(
    site: Site, is_closed: bool
) -> None:
    """The handler alone is dead: libzmq must not fall back to letting people in."""
    server = ControlServer(site.frontend)  # type: ignore[arg-type]
    authenticator = server._listeners.authenticator
    assert authenticator is not None
    if is_closed:
        authenticator.close()
    receiving = asyncio.create_task(server._receive())
    guard: asyncio.Task[None] | None = None
    stream = EventStream(site.context, site.config.events_address, curve=site.curve(site.console))
    try:
        client = site.client(site.curve(site.console))
        assert not await is_welcome(client, STRANGER_WAITS_S)
        assert not await hears(server, stream, STRANGER_TRIES)
        if not is_closed:
            guard = asyncio.create_task(authenticator.run())
            assert await welcomed_at_last(client), "it was for the authenticator"
    finally:
        for task in [receiving, *([guard] if guard else [])]:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        stream.close()
        server.close()


async def test_a_port_that_is_taken_is_one_sentence(site: Site) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as other:
        other.bind(site.config.control_address)
        with pytest.raises(ConfigError, match="cannot bind tcp:"):
            ControlServer(site.frontend)  # type: ignore[arg-type]

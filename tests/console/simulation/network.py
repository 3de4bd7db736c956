"""The ways out of a console process: conversations with engines, the broker, Redis' snapshots.

Messages are lost, doubled, late and out of order, and everything is cut off for a while. What is
said passes the real wire form both ways. One copy never comes: of a Submit that was refused, after
its refusal. ZeroMQ hands a message over at most once, and a refusal that something else holds the
engine is the end of a job; a copy that came later would begin it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import redis
from kombu.exceptions import OperationalError

from console.gateways import EngineSilent, Greeting
from console.models import Engine
from console.snapshots import StoredSnapshot
from engine.protocol import (
    PROTOCOL_VERSION,
    Command,
    ErrorCode,
    Failure,
    Hello,
    Progress,
    ProtocolError,
    Reply,
    Request,
    Response,
    Submit,
    Welcome,
    decode_request,
    decode_response,
    encode_request,
)
from tests.console.simulation.hub import Actor, check

if TYPE_CHECKING:
    from tests.console.simulation.engine import SimEngine
    from tests.console.simulation.world import World

DELAYS_S = (0.0, 0.0, 0.0, 0.002, 0.01, 0.05)
LATE_S = (0.3, 1.0, 4.0, 10.0, 20.0)


class SimNetwork:
    """Between the console's processes and the engines."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.open: dict[bytes, SimConversation] = {}
        self.cut_until = 0.0
        self.refused: set[str] = set()  # ids of requests
        # What a directed test does to a message: when its copies arrive; None: nothing special.
        self.script: Callable[[object], list[float] | None] = lambda body: None
        self._peers = itertools.count(1)

    def peer(self, conversation: SimConversation) -> bytes:
        name = str(next(self._peers)).encode()
        self.open[name] = conversation
        return name

    def delays_s(self, body: object) -> list[float]:
        """When the copies of one message arrive; none when it is lost."""
        world = self.world
        scripted = self.script(body)
        if scripted is not None:
            return scripted
        copies = [world.rng.choice(DELAYS_S)]
        if world.hub.t < self.cut_until:
            return []
        if not world.chaos:
            return copies
        if world.luck(0.04):
            world.stat["messages lost"] += 1
            return []
        if world.luck(0.05):
            copies[0] = world.rng.choice(LATE_S)
        if world.luck(0.04):
            copies.append(world.rng.choice(LATE_S))
            world.stat["messages doubled"] += 1
        return copies

    def ask(self, engine: SimEngine, peer: bytes, request: Request) -> None:
        request = decode_request(encode_request(request))
        for delay_s in self.delays_s(request.command):
            self.world.hub.after(delay_s, lambda: self._served(engine, peer, request))

    def _served(self, engine: SimEngine, peer: bytes, request: Request) -> None:
        if request.id not in self.refused:
            engine.serve(peer, request)

    def answer(self, engine: SimEngine, peer: bytes, frame: bytes) -> None:
        response = decode_response(frame)
        if isinstance(response.body, Failure):
            self.refused.add(response.id)
        for delay_s in self.delays_s(response.body):
            self.world.hub.after(delay_s, lambda: self._arrive(peer, response))

    def _arrive(self, peer: bytes, response: Response) -> None:
        conversation = self.open.get(peer)
        if conversation is not None:
            conversation.arrived(response)


class SimConversation:
    """As console.gateways.zmq.ZMQConversation over EngineClient: a greeting before anything else, a
    new peer after each silence, nothing queued for an engine that is not there."""

    def __init__(self, world: World, engine: SimEngine) -> None:
        self._world, self._engine = world, engine
        self._inbox: deque[Response] = deque()
        self._backlog: deque[Response] = deque()
        self._waiting: Actor | None = None
        self._is_greeted = False
        self._sent = itertools.count(1)
        self._peer = world.network.peer(self)

    def arrived(self, response: Response) -> None:
        self._inbox.append(response)
        if self._waiting is not None:
            self._world.hub.wake(self._waiting)

    def close(self) -> None:
        self._world.network.open.pop(self._peer, None)

    def _reset(self) -> None:
        self.close()
        self._peer = self._world.network.peer(self)
        self._inbox.clear()
        self._backlog.clear()
        self._is_greeted = False

    def hello(self, *, timeout_s: float) -> Greeting:
        """Greet."""
        sent_at_s = self._world.clock.monotonic_s()
        hello = Hello(protocol_version=PROTOCOL_VERSION, client="simulation")
        reply = self.call(hello, timeout_s=timeout_s)
        if isinstance(reply, Failure):
            raise ProtocolError(reply.code, reply.message)
        if not isinstance(reply, Welcome):
            raise ProtocolError(ErrorCode.BAD_MESSAGE, f"{type(reply).__name__} to Hello")
        self._is_greeted = True
        return Greeting(welcome=reply, sent_at_s=sent_at_s)

    def send(self, command: Command, *, timeout_s: float) -> str:
        """Send one command."""
        hub = self._world.hub
        if not self._is_greeted and not isinstance(command, Hello):
            self.hello(timeout_s=timeout_s)
        hub.seam(f"send {type(command).__name__}", self._world.step_s())
        ends = hub.t + timeout_s
        while self._engine.front is None:
            if hub.t >= ends:
                raise EngineSilent("no connection")
            hub.pause(min(0.2, max(ends - hub.t, 1e-3)))
        request = Request(id=f"{next(self._sent)}.{self._peer.decode()}", command=command)
        if isinstance(command, Submit):
            self._world.truth.sent(command)
        self._world.network.ask(self._engine, self._peer, request)
        hub.seam(f"sent {type(command).__name__}", self._world.step_s())
        return request.id

    def receive(self, *, timeout_s: float) -> Response | None:
        """The next response, or None."""
        if self._backlog:
            return self._backlog.popleft()
        return self._receive(timeout_s)

    def _receive(self, timeout_s: float) -> Response | None:
        hub = self._world.hub
        if not self._inbox:
            self._waiting = hub.running
            hub.pause(max(timeout_s, 1e-3))
            self._waiting = None
        hub.seam("received", self._world.step_s())
        return self._inbox.popleft() if self._inbox else None

    def call(self, command: Command, *, timeout_s: float) -> Reply:
        """Send and wait for the one reply."""
        ends = self._world.hub.t + timeout_s
        try:
            request_id = self.send(command, timeout_s=timeout_s)
            while (left_s := ends - self._world.hub.t) > 0:
                response = self._receive(left_s)
                if response is None:
                    break
                if response.id != request_id:
                    self._backlog.append(response)
                elif not isinstance(response.body, Progress):
                    return response.body
        except EngineSilent:
            self._reset()
            raise
        self._reset()
        raise EngineSilent("no reply")


class SimGateway:
    """The driver of simulated engines."""

    def __init__(self, world: World) -> None:
        self._world = world

    @contextmanager
    def converse(self, engine: Engine) -> Iterator[SimConversation]:
        """A new conversation."""
        conversation = SimConversation(self._world, self._world.engines[engine.name])
        try:
            yield conversation
        finally:
            conversation.close()


class SimBroker:
    """What stands for the broker: doorbells are lost, doubled, late, or refused."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.queue: deque[str] = deque()
        self.idle: list[Actor] = []
        self.down_until = 0.0

    def publish(self, job_id: str) -> None:
        """Ring."""
        world = self._world
        check(not world.db.in_atomic_block, "a doorbell before its commit")
        world.hub.seam("doorbell", world.step_s())
        if world.hub.t < self.down_until:
            raise OperationalError("redis is away")
        copies = [0.0]
        if world.chaos:
            copies = [world.rng.choice([0.0, 0.0, 0.1, 5.0])] if not world.luck(0.15) else []
            copies += [world.rng.choice([0.0, 3.0, 20.0])] if world.luck(0.15) else []
        for delay_s in copies:
            world.hub.after(delay_s, lambda: self._deliver(job_id))

    def _deliver(self, job_id: str) -> None:
        self.queue.append(job_id)
        if self.idle:
            self._world.hub.wake(self.idle.pop(self._world.rng.randrange(len(self.idle))))

    def take(self) -> str | None:
        """The next doorbell for the running worker; waits a while for one."""
        hub = self._world.hub
        if not self.queue:
            assert hub.running is not None
            self.idle.append(hub.running)
            hub.pause(5.0)
            if hub.running in self.idle:
                self.idle.remove(hub.running)
        return self.queue.popleft() if self.queue else None

    def flush_all(self) -> None:
        """FLUSHALL: every doorbell is gone."""
        self.queue.clear()
        self._world.stat["redis emptied"] += 1


class SimRedis:
    """The newest snapshots, as the relay last wrote them; gone while Redis is away."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._kept: dict[str, bytes] = {}

    def relay(self) -> None:
        """What the relay does: keep each engine's state, unless it is killed or cut off."""
        for name, engine in self._world.engines.items():
            if engine.front is not None and not (self._world.chaos and self._world.luck(0.3)):
                stored = StoredSnapshot(
                    online=True, observed_at=0.0, rev=1, state=engine.front.state()
                )
                self._kept[f"quiesce:engine:{name}"] = msgspec.json.encode(stored)
        self._world.hub.after(self._world.rng.uniform(3, 8), self.relay)

    def mget(self, names: list[str]) -> list[bytes | None]:
        """Read some."""
        if self._world.hub.t < self._world.broker.down_until:
            raise redis.ConnectionError("redis is away")
        return [self._kept.get(name) for name in names]

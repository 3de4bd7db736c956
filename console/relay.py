"""The relay: engine events → newest snapshot in Redis + hint. One thread an engine.

Subscribe, then ask for the snapshot, then apply events by number; a gap is replayed, or replaced by
a snapshot. It only listens, so it can never slow an engine down.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec
import redis
import structlog
import zmq
from django.db import DatabaseError, connection

from console import notify
from console.exceptions import ConsoleKeyUnusable
from console.gateways.zmq import curve_of
from console.mirror import EngineMirror
from console.models import Engine
from console.selectors.engines import engines_enabled
from console.snapshots import StoredSnapshot, beat_put, nudge_put, snapshot_put, snapshots_get
from engine.client import Curve, EngineClient, EngineTimeout, EventStream
from engine.protocol import (
    EngineState,
    Event,
    EventList,
    OperationEnded,
    ProtocolError,
    Replay,
    Snapshot,
    StateAnswer,
    StateChanged,
)

log = structlog.get_logger(__name__)

PUBLISH_EVERY_S = 0.2
ASK_S = 0.5
ASK_AGAIN_S = 1.0
REFRESH_ENGINES_S = 1.0

Publish = Callable[[str, StoredSnapshot], None]


def publish(name: str, snapshot: StoredSnapshot) -> None:
    """Keep the snapshot and hint. Raises redis.RedisError."""
    snapshot_put(name, snapshot)
    notify.engine_changed(name)


class EngineFollower:
    """Listens to one engine until stopped, and publishes its mirror."""

    def __init__(
        self,
        engine: Engine,
        context: zmq.Context[zmq.Socket[bytes]],
        send: Publish = publish,
        curve: Curve | None = None,
    ) -> None:
        self.engine = engine
        self.curve = curve
        self.mirror = EngineMirror()
        self._context = context
        self._send = send
        self._stop = threading.Event()
        self._rev = 0
        self._published_at = 0.0
        self._published_key: object = object()
        self._observed_at = 0.0
        self._last_known: EngineState | None = None
        self._asked_at = 0.0
        self._is_redis_down = False
        self._thread = threading.Thread(target=self._run, name=f"relay-{engine.name}", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def stop(self) -> None:
        """Stop and wait for the thread."""
        self._stop.set()
        self._thread.join(timeout=5)

    @property
    def is_alive(self) -> bool:
        """False once the thread has died, which is a fault."""
        return self._thread.is_alive()

    def _run(self) -> None:
        stream = EventStream(self._context, self.engine.events_address, curve=self.curve)
        client = EngineClient(
            self._context, self.engine.control_address, name="quiesce-relay", curve=self.curve
        )
        try:
            self._recall()
            while not self._stop.is_set():
                self._step(stream, client)
        finally:
            stream.close()
            client.reset()

    def _recall(self) -> None:
        """The last snapshot of an earlier relay: shown, as old, while the engine is away."""
        stored = snapshots_get([self.engine.name]).get(self.engine.name)
        if stored is not None:
            self._rev = stored.rev
            self._observed_at = stored.observed_at
            self._last_known = stored.state

    def _step(self, stream: EventStream, client: EngineClient) -> None:
        try:
            event = stream.receive(timeout_s=PUBLISH_EVERY_S / 2)
        except ProtocolError as error:
            log.warning("event unreadable", engine=self.engine.name, error=error.message)
            event = None
        if event is not None:
            self._take(event, client)
        elif self.mirror.state is None:
            self._resync(client)
        now_s = time.monotonic()
        key = self.mirror.key(now_s)
        since_s = now_s - self._published_at
        is_new = event is not None and since_s >= PUBLISH_EVERY_S
        if key != self._published_key or is_new:
            self._publish(now_s, key)

    def _take(self, event: Event, client: EngineClient) -> None:
        self._observed_at = time.time()
        if not self.mirror.apply(event, time.monotonic()):
            self.mirror.gaps += 1
            self._heal(event, client)
        if isinstance(event.body, OperationEnded):
            try:
                nudge_put()
            except redis.RedisError as error:
                log.debug("nudge lost", error=repr(error))

    def _heal(self, event: Event, client: EngineClient) -> None:
        """Fill a gap: replay within an epoch, else a snapshot; a whole state heals by itself."""
        state = self.mirror.state
        if state is not None and state.epoch == event.epoch:
            try:
                reply = client.call(Replay(epoch=state.epoch, after_seq=state.seq), timeout_s=ASK_S)
            except (EngineTimeout, ProtocolError):
                reply = None
            if isinstance(reply, EventList) and reply.complete:
                for missed in reply.events:
                    self.mirror.apply(missed, time.monotonic())
                if self.mirror.apply(event, time.monotonic()):
                    return
        self._resync(client, is_forced=True)
        if not self.mirror.apply(event, time.monotonic()) and isinstance(event.body, StateChanged):
            self.mirror.state = msgspec.structs.replace(event.body.state, seq=event.seq)

    def _resync(self, client: EngineClient, *, is_forced: bool = False) -> None:
        now_s = time.monotonic()
        if not is_forced and now_s - self._asked_at < ASK_AGAIN_S:
            return
        self._asked_at = now_s
        try:
            reply = client.call(Snapshot(), timeout_s=ASK_S)
        except (EngineTimeout, ProtocolError):
            return
        if isinstance(reply, StateAnswer):
            self._observed_at = time.time()
            self.mirror.snapshot(reply.state, time.monotonic())

    def _publish(self, now_s: float, key: object) -> None:
        self._last_known = self.mirror.state or self._last_known
        # Also grows over a restart of the relay, and when a clock was set back.
        self._rev = max(self._rev + 1, int(time.time() * 1000))
        try:
            self._send(
                self.engine.name,
                StoredSnapshot(
                    online=self.mirror.is_online(now_s),
                    observed_at=self._observed_at,
                    rev=self._rev,
                    state=self._last_known,
                    note=self.mirror.note(now_s),
                ),
            )
        except redis.RedisError as error:
            if not self._is_redis_down:
                log.warning("snapshot not kept", engine=self.engine.name, error=repr(error))
            self._is_redis_down = True
            self._stop.wait(PUBLISH_EVERY_S)
            return
        if self._is_redis_down:
            log.info("snapshots kept again", engine=self.engine.name)
        self._is_redis_down = False
        self._published_at, self._published_key = now_s, key


def _way(engine: Engine, curve: Curve | None) -> tuple[object, ...]:
    """What a follower is connected by: when it differs, another one is started."""
    return engine.control_address, engine.events_address, curve


class Relay:
    """Follows every enabled engine; notices new, changed and removed ones by itself."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._followers: dict[str, EngineFollower] = {}
        self._faults: dict[str, str] = {}  # engines that cannot be followed, and why: told once

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set."""
        refreshed_at = 0.0
        while not stop.is_set():
            if time.monotonic() - refreshed_at >= REFRESH_ENGINES_S:
                refreshed_at = time.monotonic()
                self._refresh()
            self._beat()
            stop.wait(0.5)
        for follower in self._followers.values():
            follower.stop()
        self._context.destroy(linger=0)

    def _refresh(self) -> None:
        try:
            wanted = self._wanted()
        except DatabaseError as error:
            log.warning("engines not read", error=repr(error))
            return
        finally:
            connection.close()
        for name, follower in list(self._followers.items()):
            if not follower.is_alive:
                log.error("relay thread died", engine=name)
            elif name in wanted and _way(*wanted[name]) == _way(follower.engine, follower.curve):
                continue
            follower.stop()
            del self._followers[name]
        for name, (engine, curve) in wanted.items():
            if name not in self._followers:
                self._followers[name] = EngineFollower(engine, self._context, curve=curve)
                self._followers[name].start()

    def _wanted(self) -> dict[str, tuple[Engine, Curve | None]]:
        """Engines to follow, with the keys for it. Raises DatabaseError."""
        wanted: dict[str, tuple[Engine, Curve | None]] = {}
        faults: dict[str, str] = {}
        for engine in engines_enabled():
            try:
                wanted[engine.name] = engine, curve_of(engine)
            except ConsoleKeyUnusable as error:
                faults[engine.name] = error.message
                if self._faults.get(engine.name) != error.message:
                    log.error("engine not followed", engine=engine.name, reason=error.message)
        self._faults = faults
        return wanted

    def _beat(self) -> None:
        if all(follower.is_alive for follower in self._followers.values()):
            try:
                beat_put("relay")
            except redis.RedisError as error:
                log.debug("no sign of life", error=repr(error))

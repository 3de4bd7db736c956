"""A browser's side of the live socket, for tests against the real web process."""

from __future__ import annotations

import json

import msgpack
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.fakes.waiting import PATIENCE_S

ENDED = {"succeeded", "failed", "partial", "expired", "cancelled", "interrupted"}


class Browser:
    """One socket, and what came over it."""

    def __init__(self, stack, cookie, *, origin=None, host="127.0.0.1"):
        headers = {"Cookie": cookie} if cookie else {}
        self.socket = connect(
            f"ws://{host}:{stack.port}/ws/live/",
            origin=stack.url if origin is None else origin,
            additional_headers=headers,
            proxy=None,
        ).__enter__()

    def __enter__(self):
        assert self.next()["type"] == "hello"
        return self

    def __exit__(self, *exc):
        self.socket.close()

    def say(self, **message):
        self.socket.send(json.dumps(message))

    def subscribe(self, *topics):
        self.say(type="subscribe", topics=list(topics))

    def next(self):
        return json.loads(self.socket.recv(timeout=PATIENCE_S))

    def until_ended(self):
        """Every update of a job until a terminal state."""
        updates = []
        while not updates or updates[-1]["data"]["state"] not in ENDED:
            message = self.next()
            if message["type"] == "update":
                updates.append(message)
        return updates


def closed_with(socket):
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            socket.recv(timeout=PATIENCE_S)
    return closed.value.rcvd.code


def hint(topic):
    """A hint as the channel layer publishes it."""
    group = "quiesce.live__group__topic." + topic.replace(":", ".")
    return group, msgpack.packb({"type": "live.hint", "topic": topic})

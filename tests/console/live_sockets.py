"""For tests of live sockets: a hub whose topics are scripted, and sockets that keep what they hear.

The channel layer is the real one, on the test's Valkey.
"""

from __future__ import annotations

import asyncio
import json

from console.access import EVERYTHING
from console.consumers.hub import Hub, ends_with
from console.consumers.reader import Found
from console.consumers.topics import Reading, TopicState

TOPIC = "engine:x"
VIEWER, OTHER = 1, 2


class ScriptedHub(Hub):
    """Each topic is a number, `version`; `before` and `after` are awaited around its reading."""

    def __init__(self):
        super().__init__()
        self.version, self.rights = 1, {}
        self.readings, self.fault = [], None

    def message(self, version):
        """As a reader makes it: JSON without its opening brace."""
        return f'"type": "update", "version": {version}}}'

    async def before(self):
        """Before the topic is read."""

    async def after(self):
        """When it was read, and nothing is shown yet."""

    async def _alive(self, log_ins):
        return set(log_ins)

    async def _read(self, topic, people, known):
        await self.before()
        if self.fault is not None:
            raise self.fault
        version, made = self.version, {}
        for rights in {self.rights.get(one, EVERYTHING) for one in people}:
            digest = str(version).encode()
            is_news = known.get(rights) != digest
            self.readings.append((topic, version, rights, is_news))
            state = TopicState(version, digest, {}, [], version)
            made[rights] = Reading(rights, state, self.message(version) if is_news else "")
        await self.after()
        return Found({one: made[self.rights.get(one, EVERYTHING)] for one in people}, 0.0)


class Ears:
    """A socket as the hub sees one: what it was shown, and how it ended."""

    def __init__(self, user_id=VIEWER, session_key="s"):
        self.user_id, self.session_key = user_id, session_key
        self.shown, self.code = [], None

    def show(self, topic, message):
        assert self.code is None, "shown after its end"
        self.shown.append((topic, json.loads("{" + message)["version"]))

    def gone(self, topic, *, is_refused):
        self.shown.append((topic, "refused" if is_refused else "gone"))

    def fail(self):
        self.end(1013)

    def heard(self, kind):
        self.end(ends_with(kind))

    @property
    def has_ended(self):
        return self.code is not None

    def end(self, code):
        self.code = self.code or code


async def until(check):
    """Wait until `check` is true; pytest's own timeout ends what never comes."""
    while not check():
        await asyncio.sleep(0.005)


def said(messages):
    """The JSON texts that a consumer sent, parsed."""
    return [json.loads(one["text"]) for one in messages if one["type"] == "websocket.send"]

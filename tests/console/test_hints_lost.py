"""Hints when Redis hangs: whoever sends is not held up, what is lost is counted, and said once."""

from __future__ import annotations

import socket
import threading

import pytest
import structlog

from console import notify
from tests.fakes.waiting import PATIENCE_S, wait_until

MANY = 500
WAITING = 20


def layer(address):
    """CHANNEL_LAYERS, as shipped but for the address."""
    return {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [{"address": address}], "prefix": "lost"},
        }
    }


@pytest.fixture
def hung():
    """A port that takes connections and never answers; `close` hangs up on all of them."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server


def test_a_redis_that_hangs_costs_its_callers_nothing_and_what_is_lost_is_counted(
    hung, valkey, settings, monkeypatch
):
    """L01: 500 changes from five threads; nothing is awaited, nothing raised, nothing piles up."""
    monkeypatch.setattr(notify, "MAX_PENDING", WAITING)
    settings.CHANNEL_LAYERS = layer(f"redis://127.0.0.1:{hung.getsockname()[1]}")
    sender = notify._Sender()
    with structlog.testing.capture_logs() as logs:

        def change():
            for _ in range(MANY // 5):
                sender.send("topic.x", {"type": notify.HINT, "topic": "x"})

        threads = [threading.Thread(target=change) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sender._pending <= WAITING
        assert sender._pending + sender._lost == MANY
        hung.close()
        wait_until(lambda: sender._lost == MANY)
        settings.CHANNEL_LAYERS = layer(valkey)
        sender.send("topic.x", {"type": notify.HINT, "topic": "x"})
        wait_until(lambda: not sender._pending)
    said = [(line["event"], line.get("lost")) for line in logs]
    assert said == [("hints are lost", None), ("hints are sent again", MANY)]

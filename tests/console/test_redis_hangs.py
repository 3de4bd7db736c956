"""A Redis that takes connections and answers nothing is waited for once, not at every use."""

from __future__ import annotations

import select
import socket

import pytest
import redis

from console import redis_away, snapshots
from console.dispatch import RING_S, _connection, job_ring
from console.project.celery import app


@pytest.fixture(autouse=True)
def _own_app():
    """Whoever makes an app in a test makes it the current one."""
    app.set_current()


@pytest.fixture
def hung(valkey, monkeypatch, settings):
    """A port of that kind, as the broker and as Redis."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        url = f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        settings.REDIS_URL = url
        monkeypatch.setattr(snapshots, "_clients", {})
        monkeypatch.setattr(redis_away, "_seen_at", [])
        monkeypatch.setattr(redis_away, "REMEMBERED_S", 3600.0)
        monkeypatch.setattr(app.conf, "broker_write_url", url)
        _connection.cache_clear()  # a process has one broker
        yield server
    _connection.cache_clear()


def accepted(server: socket.socket) -> int:
    """Connections since the last time."""
    count = 0
    while select.select([server], [], [], 0)[0]:
        server.accept()[0].close()
        count += 1
    return count


def test_a_doorbell_that_is_not_heard_is_tried_once(hung):
    assert job_ring("00000000-0000-4000-8000-000000000000") is False
    assert accepted(hung) > 0
    assert job_ring("00000000-0000-4000-8000-000000000000") is False
    assert accepted(hung) == 0


def test_a_worker_may_wait_longer_in_a_read_than_who_rings():
    waits_s = app.conf.broker_transport_options["socket_timeout"]
    assert _connection().transport_options["socket_timeout"] == RING_S < waits_s


def test_a_page_asks_once_and_then_goes_by_the_database(hung):
    assert snapshots.snapshots_get(["e"]) == {}
    assert accepted(hung) > 0
    assert snapshots.snapshots_get(["e"]) == {}
    with pytest.raises(redis.RedisError):
        snapshots.beats_get()
    assert accepted(hung) == 0


def test_a_redis_that_is_back_is_used_again(hung, valkey, settings, monkeypatch):
    assert snapshots.snapshots_get(["e"]) == {}
    settings.REDIS_URL = valkey
    monkeypatch.setattr(snapshots, "_clients", {})
    monkeypatch.setattr(redis_away, "REMEMBERED_S", 0.0)
    snapshots.beat_put("worker")
    assert snapshots.beats_get()["worker"] is not None

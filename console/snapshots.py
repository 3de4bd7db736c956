"""The newest state of each engine, and signs of life of the console's processes, in Redis.

Written by the relay (and by each process for itself), read by selectors. Nothing here is a truth
that may not be lost: the relay writes it anew within half a second.
"""

from __future__ import annotations

import os
import time
from typing import Any  # what Redis holds

import msgspec
import redis
from django.conf import settings

from console.redis_away import redis_is_away, redis_was_away
from engine.protocol import EngineState

PREFIX = "quiesce"
KEEP_S = 24 * 3600
BEAT_TTL_S = 10
PARTS = ("worker", "relay", "reconciler")


class StoredSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What the relay last knew. `rev` grows with each write, also over the relay's restarts."""

    online: bool
    observed_at: float  # of the newest event, seconds since 1970
    rev: int
    state: EngineState | None
    note: str = ""


_decoder = msgspec.json.Decoder(StoredSnapshot)
_clients: dict[int, redis.Redis] = {}


def redis_client() -> redis.Redis:
    """This process's client; a forked child gets its own."""
    pid = os.getpid()
    if pid not in _clients:
        _clients.clear()
        _clients[pid] = redis.Redis.from_url(
            settings.REDIS_URL, socket_timeout=2.0, socket_connect_timeout=1.0
        )
    return _clients[pid]


def _mget(keys: list[str]) -> list[Any]:
    """Raises redis.RedisError, at once where it was raised a moment ago."""
    if redis_is_away():
        raise redis.ConnectionError("Redis did not answer a moment ago")
    try:
        return list(redis_client().mget(keys))
    except redis.RedisError:
        redis_was_away()
        raise


def _engine_key(name: str) -> str:
    return f"{PREFIX}:engine:{name}"


def snapshot_put(name: str, snapshot: StoredSnapshot) -> None:
    """Keep `snapshot` as the newest of engine `name`. Raises redis.RedisError."""
    redis_client().set(_engine_key(name), msgspec.json.encode(snapshot), ex=KEEP_S)


def snapshots_get(names: list[str]) -> dict[str, StoredSnapshot]:
    """The newest snapshots of the named engines; none for one never seen, or without Redis."""
    if not names:
        return {}
    try:
        raw = _mget([_engine_key(name) for name in names])
    except redis.RedisError:
        return {}
    found: dict[str, StoredSnapshot] = {}
    for name, text in zip(names, raw, strict=True):
        if text is not None:
            try:
                found[name] = _decoder.decode(text)
            except msgspec.DecodeError:
                continue  # written by another release; the relay replaces it at once
    return found


def beat_put(part: str) -> None:
    """Say that `part` of the console is alive. Raises redis.RedisError."""
    redis_client().set(f"{PREFIX}:beat:{part}", repr(time.time()), ex=BEAT_TTL_S)


def beats_get() -> dict[str, float | None]:
    """Age in seconds of each part's last sign of life; None when there is none. Raises
    redis.RedisError."""
    raw = _mget([f"{PREFIX}:beat:{part}" for part in PARTS])
    now = time.time()
    return {
        part: None if text is None else max(0.0, now - float(text))
        for part, text in zip(PARTS, raw, strict=True)
    }


def nudge_put() -> None:
    """Wake the reconciler: an operation ended somewhere. Raises redis.RedisError."""
    client = redis_client()
    client.lpush(f"{PREFIX}:nudge", "1")
    client.ltrim(f"{PREFIX}:nudge", 0, 0)


def nudge_wait(timeout_s: float) -> bool:
    """Return at the next nudge (True), or after `timeout_s` (below Redis' socket timeout)."""
    started = time.monotonic()
    try:
        return redis_client().blpop([f"{PREFIX}:nudge"], timeout=timeout_s) is not None
    except redis.RedisError:
        time.sleep(max(0.0, timeout_s - (time.monotonic() - started)))
        return False

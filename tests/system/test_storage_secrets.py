"""A password of a real Valkey, from the API to both ranks: it works, and is found nowhere else.

Everything runs at DEBUG. The one place that may hold it is the engine's own settings folder.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import zmq

from tests.fakes import plain_http
from tests.fakes.supervised import Supervised, supervised
from tests.fakes.waiting import wait_until
from tests.system.storage_stack import (
    ATTACH,
    DETACH,
    Store,
    ask,
    do,
    done,
    end_of,
    flush,
    from_storage,
    generate,
    logged_in,
    undo,
    until_idle,
    valkey_store,
    view,
)

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def stack(smollm2_dir: Path, cpu_ext_dir: Path) -> Iterator[Supervised]:
    debug = {"QUIESCE_LOG_LEVEL": "DEBUG"}
    with supervised(smollm2_dir, cpu_ext_dir, "--dp-size", "2", env=debug) as stack:
        yield stack


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with valkey_store(tmp_path_factory.mktemp("store")) as made:
        yield made


def broker(stack: Supervised) -> redis.Redis:
    """The console's own Valkey."""
    settings = (stack.dir / "valkey" / "valkey.conf").read_text()
    port, password = (re.search(rf"^{n} (\S+)$", settings, re.M) for n in ("port", "requirepass"))
    assert port is not None and password is not None
    return redis.Redis(port=int(port[1]), password=password[1])


class Overheard:
    """All that the engine publishes, and every command that the console's broker gets."""

    def __init__(self, stack: Supervised) -> None:
        self.parts: list[bytes] = []
        self._is_over = False
        self._address = f"ipc://{stack.dir}/run/events.sock"
        self._monitor = broker(stack).monitor()
        self._monitor.__enter__()
        threading.Thread(target=self._commands, daemon=True).start()
        self._events_thread = threading.Thread(target=self._events, daemon=True)
        self._events_thread.start()

    def _events(self) -> None:
        with zmq.Context() as context, context.socket(zmq.SUB) as socket:
            socket.linger = 0
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.connect(self._address)
            while not self._is_over:
                if socket.poll(100):
                    self.parts += socket.recv_multipart()

    def _commands(self) -> None:
        with contextlib.suppress(redis.RedisError, OSError, ValueError, AttributeError):
            for command in self._monitor.listen():
                self.parts.append(str(command["command"]).encode())

    def end(self) -> bytes:
        self._is_over = True
        self._events_thread.join()
        return b"\n".join(self.parts)


def pages(stack: Supervised, jobs: list[str]) -> Iterator[tuple[str, str]]:
    """What people and scripts can read: every page and route that may name a backend."""
    with logged_in(stack) as client:
        seqs = [one["seq"] for one in stack.api("GET", "/audit").json()["items"]]
        paths = [
            *("/", "/jobs", "/audit", "/backends", "/engines/local", "/engines/local/backend"),
            *("/engines/local/backend/attach", "/engines/local/backend/attach?backend=valkey"),
            *(f"/jobs/{job}" for job in jobs),
            *(f"/engines/local/backend/attach?undo={job}" for job in jobs),
            *(f"/audit/{seq}" for seq in seqs),
        ]
        for path in paths:
            yield path, client.get(path).text
    for path in (
        *("/jobs", "/audit", "/engines", "/engines/local", "/backends"),
        *(f"/jobs/{job}" for job in jobs),
    ):
        yield f"api {path}", stack.api("GET", path).text
    key = (stack.dir / "engine-admin-key").read_text().strip()
    for path in ("/hicache/storage-backend", "/operations", "/server_info", "/metrics"):
        headers = {"Authorization": f"Bearer {key}"}
        yield path, plain_http.get(stack.engine_base + path, headers=headers).text


def holders(stack: Supervised, canary: str) -> list[Path]:
    """Files of the whole state folder that hold it, and broker or database, asked themselves."""
    with contextlib.closing(sqlite3.connect(stack.dir / "console.sqlite3")) as database:
        assert canary not in "\n".join(database.iterdump())
    with broker(stack) as client:
        kept = [client.dump(key) for key in client.scan_iter()]
        assert not any(canary.encode() in (one or b"") for one in kept)  # type: ignore[operator]
    found = []
    for path in stack.dir.rglob("*"):
        with contextlib.suppress(OSError):  # sockets, and what was just removed
            if path.is_file() and canary.encode() in path.read_bytes():
                found.append(path)
    return found


def is_settings_file(stack: Supervised, path: Path) -> bool:
    inside = path.relative_to(stack.dir).parts
    is_there = inside[:2] == ("engine", "storage-settings") and inside[2] in ("configs", "secrets")
    return is_there and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_password_reaches_both_ranks_and_nothing_else(stack: Supervised, store: Store) -> None:
    """S03, S01: no page, route, log, table, message or argument of a process has it."""
    overheard = Overheard(stack)
    asked = ask(stack, ATTACH, key="once", backend="valkey", config=store.config)
    assert asked.status_code == 202, asked.text
    attached = end_of(stack, asked.json()["id"])
    assert attached["state"] == "succeeded", attached["error"]
    text = generate(stack)["text"]
    flush(stack)
    again = generate(stack)
    assert from_storage(again) == 592 and again["text"] == text and store.keys() > 30

    wrong = do(
        stack,
        ATTACH,
        backend="valkey",
        config={**store.config, "password": f"{store.password}-wrong"},
        replace=True,
    )
    assert wrong["state"] == "failed" and "WRONGPASS" in wrong["error"]["message"]
    until_idle(stack)
    gone = done(stack, DETACH)
    jobs = [attached["id"], wrong["id"], gone["id"]]
    assert json.dumps([attached, wrong, gone]).count("hmac:") >= 3

    shown = dict(pages(stack, jobs))
    assert len(shown) > 20 and "hmac:" in shown[f"/jobs/{jobs[0]}"]
    assert [path for path, body in shown.items() if store.password in body] == []
    told = overheard.end()
    assert b"attach_storage_backend" in told and jobs[0].encode() in told
    assert store.password.encode() not in told
    assert "level=debug" in (stack.dir / "logs" / "worker.log").read_text()
    found = holders(stack, store.password)
    assert found and all(is_settings_file(stack, path) for path in found), found
    for process in stack.descendants():
        assert store.password not in " ".join([*process.cmdline(), *process.environ().values()])

    # A start later the engine still has it: the same request is the same job, an undo needs none.
    before = view(stack)["epoch"]
    stack.child("engine serve").kill()
    wait_until(lambda: view(stack)["online"] and view(stack)["epoch"] != before)
    wait_until(lambda: all(rank["proven"] for rank in view(stack)["ranks"]))
    repeated = ask(stack, ATTACH, key="once", backend="valkey", config=store.config)
    assert (repeated.status_code, repeated.json()["id"]) == (200, jobs[0])
    back = undo(stack, gone)
    assert back["reply"]["storage"] == attached["reply"]["storage"]
    warm = generate(stack)
    assert from_storage(warm) == 592 and warm["text"] == text
    assert all(is_settings_file(stack, path) for path in holders(stack, store.password))

"""The Valkey backend: sign-in, TLS, sockets, a full server, and servers that misbehave."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from engine.cache.storage.base import Status, StorageError
from engine.cache.storage.resp import RespError
from engine.cache.storage.valkey import ValkeyStorage
from tests.engine.cache.storage.beds import ValkeyBed
from tests.engine.cache.storage.pages import page_keys, soon
from tests.engine.cache.storage.tls_proxy import TLSProxy, certificate
from tests.fakes.waiting import PATIENCE_S

SECRET = "p4ss-word-of-the-test"


@pytest.fixture
def bed(short_dir: Path) -> Iterator[ValkeyBed]:
    made = ValkeyBed(short_dir)
    made.flags = ("--unixsocket", str(short_dir / "s.sock"))
    made.start()
    yield made
    made.stop()


def round_trip(bed: ValkeyBed, storage: ValkeyStorage, count: int = 3) -> list[bytes]:
    keys = page_keys(count, bed.identity)
    storage.open(soon())
    assert storage.batch_put(keys, bed.pages.sealed(keys)) == [Status.OK] * count
    buffers = bed.pages.buffers(count)
    assert storage.batch_get(keys, buffers) == [Status.OK] * count
    assert bed.pages.faults(keys, buffers) == [None] * count
    return keys


def refused(storage: ValkeyStorage) -> str:
    with pytest.raises(StorageError) as caught:
        storage.open(soon())
    assert SECRET not in f"{caught.value} {caught.value.__cause__!r}"
    return str(caught.value)


def test_a_user_with_a_password_may_use_a_database_of_its_own(bed: ValkeyBed) -> None:
    bed.ask(b"ACL", b"SETUSER", b"kv", b"on", b">" + SECRET.encode(), b"~quiesce:*", b"+@all")
    storage = bed.storage(url=f"redis://127.0.0.1:{bed.port}/3", username="kv", password=SECRET)
    round_trip(bed, storage)
    assert bed.ask(b"DBSIZE") == 0
    assert storage.clear(soon()) == 3
    storage.close(soon())


def test_a_wrong_password_is_said_without_it(bed: ValkeyBed) -> None:
    said = refused(bed.storage(username="kv", password=SECRET))
    assert "WRONGPASS (the server refuses the user or password)" in said


def test_a_server_that_wants_a_password_says_so(bed: ValkeyBed) -> None:
    bed.ask(b"CONFIG", b"SET", b"requirepass", SECRET.encode())
    assert "NOAUTH" in refused(bed.storage())
    storage = bed.storage(password=SECRET)
    round_trip(bed, storage)
    storage.close(soon())


def test_a_unix_socket_is_used_only_under_a_root(bed: ValkeyBed) -> None:
    storage = bed.storage(url=f"unix://{bed.folder}/s.sock?db=2")
    round_trip(bed, storage)
    storage.close(soon())
    said = refused(bed.storage(url="unix:///run/other.sock"))
    assert said == "url is not under an allowed storage root"


def test_an_endpoint_that_is_not_listed_is_refused(bed: ValkeyBed) -> None:
    said = refused(bed.storage(url="valkey://10.1.2.3:6379/0"))
    assert "10.1.2.3:6379, which is not an allowed storage endpoint" in said


def test_tls_works_and_wants_a_certificate_that_is_trusted(
    bed: ValkeyBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate(bed.folder)
    proxy = TLSProxy(bed.port, cert, key)
    try:
        url = f"valkeys://127.0.0.1:{proxy.port}/0"
        assert "certificate verify failed" in refused(bed.storage(url=url))
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        storage = bed.storage(url=url)
        round_trip(bed, storage, 8)
        storage.close(soon())
    finally:
        proxy.close()


def test_a_server_that_evicts_nothing_is_full(bed: ValkeyBed) -> None:
    storage = bed.tiny()
    storage.open(soon())
    keys = page_keys(40, bed.identity)
    found = storage.batch_put(keys, bed.pages.sealed(keys))
    assert set(found) == {Status.OK, Status.FULL}
    got = storage.batch_get(keys, bed.pages.buffers(40))
    assert [status == Status.OK for status in got] == [status == Status.OK for status in found]
    storage.close(soon())


def test_a_server_that_evicts_takes_everything(bed: ValkeyBed) -> None:
    storage = bed.tiny()
    bed.ask(b"CONFIG", b"SET", b"maxmemory-policy", b"allkeys-lru")
    storage.open(soon())
    keys = page_keys(40, bed.identity)
    assert storage.batch_put(keys, bed.pages.sealed(keys)) == [Status.OK] * 40
    storage.close(soon())


def test_pages_expire(bed: ValkeyBed) -> None:
    storage = bed.storage(ttl=100)
    keys = round_trip(bed, storage)
    name = f"quiesce:{bed.identity.hex()}:{keys[0].hex()}".encode()
    left = bed.ask(b"TTL", name)
    assert isinstance(left, int)
    assert 90 <= left <= 100
    storage.close(soon())


def test_a_key_that_is_no_string_fails_alone(bed: ValkeyBed) -> None:
    storage = bed.storage()
    keys = round_trip(bed, storage)
    name = f"quiesce:{bed.identity.hex()}:{keys[1].hex()}".encode()
    bed.ask(b"DEL", name)
    bed.ask(b"LPUSH", name, b"x")
    got = storage.batch_get(keys, bed.pages.buffers(3))
    assert got == [Status.OK, Status.ERROR, Status.OK]
    assert storage.batch_exists(keys) == [True, False, True]
    storage.close(soon())


def test_an_idle_connection_that_was_closed_is_made_again(bed: ValkeyBed) -> None:
    storage = bed.storage()
    keys = round_trip(bed, storage)
    bed.ask(b"CLIENT", b"KILL", b"TYPE", b"normal", b"SKIPME", b"yes")
    assert storage.batch_get(keys, bed.pages.buffers(3)) == [Status.OK] * 3
    assert storage.batch_put(keys, bed.pages.sealed(keys)) == [Status.OK] * 3
    storage.close(soon())


def test_a_server_that_was_started_again_is_used_again(bed: ValkeyBed) -> None:
    storage = bed.storage()
    keys = round_trip(bed, storage)
    bed.kill()
    with pytest.raises(ConnectionRefusedError):
        storage.batch_get(keys, bed.pages.buffers(3))
    bed.start()
    assert storage.batch_get(keys, bed.pages.buffers(3)) == [Status.MISS] * 3
    assert storage.batch_put(keys, bed.pages.sealed(keys)) == [Status.OK] * 3
    storage.close(soon())


def test_clear_finds_all_of_many_keys_in_time(bed: ValkeyBed) -> None:
    storage = bed.storage()
    storage.open(soon())
    script = b"for i=1,25000 do redis.call('SET', KEYS[1] .. i, 'x') end return 0"
    bed.ask(b"EVAL", script, b"1", f"quiesce:{bed.identity.hex()}:".encode())
    bed.ask(b"SET", b"quiesce:other", b"x")
    with pytest.raises(StorageError, match="pages were cleared, then"):
        storage.clear(time.monotonic())
    assert storage.clear(soon()) == 25_000
    assert bed.ask(b"DBSIZE") == 1
    storage.close(soon())


class Stub:
    """A server that answers each connection as a test says."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._serve = serve
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client, suppress(OSError):
                    client.settimeout(PATIENCE_S)
                    self._serve(client)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is not RESP"),
        (b"-LOADING Valkey is loading the dataset in memory\r\n", "LOADING"),
        (b"*99999999999\r\n", "is not RESP"),
        (b"x" * 70_000, "is not RESP"),
        (b"", "closed the connection"),
    ],
)
def test_what_answers_otherwise_is_said(bed: ValkeyBed, answer: bytes, said: str) -> None:
    def serve(client: socket.socket) -> None:
        client.recv(1 << 16)
        client.sendall(answer)

    stub = Stub(serve)
    try:
        assert said in refused(bed.storage(url=f"valkey://127.0.0.1:{stub.port}"))
    finally:
        stub.close()


def test_a_server_that_trickles_is_given_up(bed: ValkeyBed) -> None:
    def serve(client: socket.socket) -> None:
        client.sendall(b"+")
        while True:  # until the other side leaves
            client.sendall(b"P")
            time.sleep(0.02)

    stub = Stub(serve)
    try:
        storage = bed.storage(url=f"valkey://127.0.0.1:{stub.port}", connect_timeout=0.3)
        assert "did not answer in time" in refused(storage)
    finally:
        stub.close()


def test_an_error_of_all_pages_is_raised_with_its_code(bed: ValkeyBed) -> None:
    storage = bed.storage()
    storage.open(soon())
    bed.ask(b"ACL", b"SETUSER", b"default", b"-get")
    with pytest.raises(RespError, match="NOPERM"):
        storage.batch_get(page_keys(2, bed.identity), bed.pages.buffers(2))
    storage.close(soon())

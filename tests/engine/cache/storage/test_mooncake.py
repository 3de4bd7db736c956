"""The Mooncake backend: a full store, and the process that its client runs in."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from engine.cache.storage.base import Status, StorageError
from engine.cache.storage.isolated import IsolatedStorage
from engine.cache.storage.registry import make
from engine.protocol import HostLayout, StorageBackend
from engine.protocol.storage_configs import MooncakeConfig
from tests.engine.cache.storage.beds import MooncakeBed
from tests.engine.cache.storage.pages import Pages, page_keys, soon

pytest.importorskip("mooncake", reason="the optional package mooncake is not installed")


@pytest.fixture
def bed(short_dir: Path) -> Iterator[MooncakeBed]:
    made = MooncakeBed(short_dir)
    made.start()
    yield made
    made.stop()


def opened(bed: MooncakeBed, **config: object) -> IsolatedStorage:
    storage = bed.storage(**config)
    assert isinstance(storage, IsolatedStorage)
    storage.open(soon())
    return storage


def put(bed: MooncakeBed, storage: IsolatedStorage, keys: list[bytes]) -> list[Status]:
    return storage.batch_put(keys, bed.pages.sealed(keys))


def test_a_store_without_room_says_full(bed: MooncakeBed) -> None:
    bed.pages = Pages(payload_bytes=2_000_000, count=16)
    storage = opened(bed, global_segment_size=16 << 20)
    keys = page_keys(16, bed.identity)
    found = put(bed, storage, keys)
    assert set(found) == {Status.OK, Status.FULL}
    got = storage.batch_get(keys, bed.pages.buffers(16))
    # The master evicts by and by: what was kept may be gone, what was not kept is not there.
    assert Status.OK in got
    assert all(was is Status.OK for was, now in zip(found, got, strict=True) if now is Status.OK)
    bed.close(storage)


def test_batches_larger_than_the_stage_go_in_parts(bed: MooncakeBed) -> None:
    bed.pages = Pages(payload_bytes=1_000_000, count=40)
    storage = opened(bed, global_segment_size=128 << 20)
    keys = page_keys(40, bed.identity)
    assert put(bed, storage, keys) == [Status.OK] * 40
    buffers = bed.pages.buffers(40)
    assert storage.batch_get(keys, buffers) == [Status.OK] * 40
    assert bed.pages.faults(keys, buffers) == [None] * 40
    bed.close(storage)


def test_a_client_that_dies_is_started_again_by_the_next_call(bed: MooncakeBed) -> None:
    storage = opened(bed)
    keys = page_keys(4, bed.identity)
    put(bed, storage, keys)
    first = storage.child_pid
    os.kill(first, signal.SIGKILL)
    with pytest.raises(ConnectionError):
        storage.batch_get(keys, bed.pages.buffers(4))
    assert put(bed, storage, keys)[0] in (Status.OK, Status.ERROR)
    assert storage.child_pid not in (0, first)
    bed.close(storage)


def test_a_client_that_hangs_is_ended(bed: MooncakeBed) -> None:
    storage = opened(bed, io_timeout=bed.short_io_timeout)
    first = storage.child_pid
    os.kill(first, signal.SIGSTOP)
    keys = page_keys(4, bed.identity)
    with pytest.raises(ConnectionError, match="did not answer in time"):
        put(bed, storage, keys)
    assert storage.batch_exists(keys) == [False] * 4
    assert storage.child_pid not in (0, first)
    assert not psutil.pid_exists(first)
    bed.close(storage)


def test_a_client_that_does_not_close_is_ended_at_the_deadline(bed: MooncakeBed) -> None:
    storage = opened(bed)
    process = psutil.Process(storage.child_pid)
    process.suspend()
    storage.close(soon(0.5))
    assert not process.is_running()


def test_closing_stops_no_other_thread(bed: MooncakeBed) -> None:
    storage = opened(bed)
    ticks: list[float] = []
    is_closed = threading.Event()

    def tick() -> None:
        while not is_closed.wait(0.005):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    storage.close(soon())
    is_closed.set()
    thread.join()
    # In-process, the library holds Python's lock for as long as it closes: there was one tick.
    assert len(ticks) > 5


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"master_server_address": "10.0.0.1:50051"}, "not an allowed storage endpoint"),
        ({"master_server_address": "127.0.0.1:99999"}, "is not host:port"),
        ({"metadata_server": "http://10.0.0.1:8080/metadata"}, "not an allowed storage endpoint"),
        ({"metadata_server": "etcd://127.0.0.1:8080"}, "neither P2PHANDSHAKE nor http"),
    ],
)
def test_an_address_that_it_may_not_use_is_named(
    bed: MooncakeBed, config: dict[str, object], said: str
) -> None:
    with pytest.raises(StorageError, match=said):
        opened(bed, **config)


def test_a_master_that_hangs_is_named_in_time(bed: MooncakeBed) -> None:
    bed.freeze()
    storage = bed.storage()
    with pytest.raises(StorageError, match=r"Mooncake master|cannot be opened"):
        storage.open(soon(4))
    storage.close(soon())
    bed.thaw()


def test_a_layout_whose_pages_are_in_pieces_is_refused(bed: MooncakeBed) -> None:
    site = replace(bed.site(), layout=HostLayout.LAYER_FIRST)
    config = MooncakeConfig(master_server_address="127.0.0.1:1")
    with pytest.raises(StorageError, match="layer_first: it moves a page as one run of bytes"):
        make(StorageBackend.MOONCAKE, config, site)


def test_a_library_that_does_not_load_is_named(
    bed: MooncakeBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake" / "__init__.py").write_text("")
    (tmp_path / "mooncake" / "store.py").write_text(
        "raise ImportError('libibverbs.so.1: cannot open shared object file')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(StorageError, match=r"cannot be loaded: libibverbs\.so\.1"):
        opened(bed)

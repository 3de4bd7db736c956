"""The 3FS backend, on a stand-in for its package: slots, the log beside them, and faults of I/O."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.cache.storage.base import Status, Storage, StorageError
from tests.engine.cache.storage.beds import VENDORS, Hf3fsBed
from tests.engine.cache.storage.pages import page_keys, soon

Faults = Callable[..., None]


@pytest.fixture
def bed(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Hf3fsBed:
    monkeypatch.syspath_prepend(VENDORS)
    monkeypatch.setenv("HF3FS_FAULTS", str(short_dir / "faults.json"))
    return Hf3fsBed(short_dir)


@pytest.fixture
def faults(bed: Hf3fsBed) -> Faults:
    """What goes wrong from now on; nothing without arguments."""

    def have(**what: object) -> None:
        (bed.folder / "faults.tmp").write_text(json.dumps(what))
        (bed.folder / "faults.tmp").rename(bed.folder / "faults.json")

    return have


def put(bed: Hf3fsBed, storage: Storage, keys: list[bytes]) -> list[Status]:
    return storage.batch_put(keys, bed.pages.sealed(keys))


def get(bed: Hf3fsBed, storage: Storage, keys: list[bytes]) -> list[Status]:
    buffers = bed.pages.buffers(len(keys))
    statuses = storage.batch_get(keys, buffers)
    faults = bed.pages.faults(keys, buffers)
    assert [f for f, s in zip(faults, statuses, strict=True) if s == Status.OK and f] == []
    return statuses


def test_batches_larger_than_all_rings_go_in_rounds(bed: Hf3fsBed) -> None:
    with bed.opened(bed.storage(numjobs=3, entries=4)) as storage:
        keys = page_keys(40, bed.identity)
        assert put(bed, storage, keys) == [Status.OK] * 40
        assert get(bed, storage, keys) == [Status.OK] * 40


def test_a_page_that_was_read_is_overwritten_later(bed: Hf3fsBed) -> None:
    with bed.opened(bed.tiny()) as storage:
        keys = page_keys(20, bed.identity)
        put(bed, storage, keys[:8])
        for i in range(8, 20, 4):
            assert get(bed, storage, keys[2:3]) == [Status.OK]
            put(bed, storage, keys[i : i + 4])
        found = get(bed, storage, keys)
        assert found[2] == Status.OK
        assert found.count(Status.OK) == 8


@pytest.mark.parametrize(
    ("what", "put_status", "get_status"),
    [
        ({"errno": errno.EIO, "only": "write"}, Status.ERROR, Status.MISS),
        ({"errno": errno.ENOSPC, "only": "write"}, Status.FULL, Status.MISS),
        ({"errno": errno.EIO, "only": "read"}, Status.OK, Status.ERROR),
        ({"errno": errno.ENODATA, "only": "read"}, Status.OK, Status.MISS),
        ({"short": 100, "only": "read"}, Status.OK, Status.MISS),
        ({"short": 100, "only": "write"}, Status.ERROR, Status.MISS),
    ],
)
def test_an_io_that_fails_costs_its_pages(
    bed: Hf3fsBed, faults: Faults, what: dict[str, object], put_status: Status, get_status: Status
) -> None:
    with bed.opened() as storage:
        keys = page_keys(4, bed.identity)
        faults(**what)
        assert put(bed, storage, keys) == [put_status] * 4
        assert get(bed, storage, keys) == [get_status] * 4
        faults()
        assert put(bed, storage, keys) == [Status.OK] * 4
        assert get(bed, storage, keys) == [Status.OK] * 4


def test_an_io_that_does_not_come_back_is_not_waited_for(bed: Hf3fsBed, faults: Faults) -> None:
    bed.io_timeout = bed.short_io_timeout
    with bed.opened() as storage:
        keys = page_keys(4, bed.identity)
        put(bed, storage, keys)
        faults(delay_s=3, only="read")
        with pytest.raises(Exception, match="3FS did not answer in time"):
            get(bed, storage, keys)
        faults()  # Late completions ended with the process that they belonged to.
        assert get(bed, storage, keys) == [Status.OK] * 4


@pytest.mark.parametrize("cut_bytes", [1, 30, 56])
def test_a_torn_log_forgets_its_last_page_only(bed: Hf3fsBed, cut_bytes: int) -> None:
    keys = page_keys(6, bed.identity)
    with bed.opened() as storage:
        put(bed, storage, keys)
    (log,) = bed.folder.rglob("*.index")
    os.truncate(log, log.stat().st_size - cut_bytes)
    with bed.opened() as storage:
        assert get(bed, storage, keys) == [Status.OK] * 5 + [Status.MISS]
        assert put(bed, storage, keys) == [Status.OK] * 6
        assert get(bed, storage, keys) == [Status.OK] * 6


def test_a_log_that_is_behind_serves_no_other_page(bed: Hf3fsBed) -> None:
    keys = page_keys(16, bed.identity)
    with bed.opened(bed.tiny()) as storage:
        put(bed, storage, keys[:8])
        (log,) = bed.folder.rglob("*.index")
        behind = log.read_bytes()
        put(bed, storage, keys[8:])
    log.write_bytes(behind)
    with bed.opened(bed.tiny()) as storage:
        assert get(bed, storage, keys) == [Status.MISS] * 16


def test_the_log_does_not_grow_for_ever(bed: Hf3fsBed) -> None:
    with bed.opened(bed.tiny()) as storage:
        for start in range(0, 1600, 40):
            put(bed, storage, page_keys(40, bed.identity, start))
        (log,) = bed.folder.rglob("*.index")
        assert log.stat().st_size <= 56 * (4 * 8 + 1024 + 40)
    with bed.opened(bed.tiny()):
        assert log.stat().st_size <= 56 * 2 * 8


def test_a_second_engine_in_the_same_file_is_told_so(bed: Hf3fsBed) -> None:
    with bed.opened(), pytest.raises(StorageError, match="in use by another process"):
        bed.storage().open(soon())


def test_a_file_smaller_than_a_page_is_refused(bed: Hf3fsBed) -> None:
    bed.pages = type(bed.pages)(payload_bytes=100_000, count=2)
    with pytest.raises(StorageError, match="file_size is 65536 bytes; one page has 102400"):
        bed.storage(file_size=1 << 16).open(soon())

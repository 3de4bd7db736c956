"""The AIBrix backend. Each opening loads torch in a process, so its common tests are slow ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.cache.storage.base import Status, StorageError
from tests.engine.cache.storage.beds import AibrixBed, AibrixFilesBed
from tests.engine.cache.storage.pages import page_keys, soon

pytest.importorskip("aibrix_kvcache", reason="the optional package is not installed")


@pytest.mark.parametrize("kind", [AibrixBed, AibrixFilesBed])
def test_pages_come_back_until_they_are_cleared(kind: type[AibrixBed], short_dir: Path) -> None:
    bed = kind(short_dir)
    before = {name for name in os.environ if name.startswith("AIBRIX")}
    with bed.opened() as storage:
        keys = page_keys(6, bed.identity)
        assert storage.batch_put(keys[:5], bed.pages.sealed(keys[:5])) == [Status.OK] * 5
        storage.batch_delete(keys[3:4])
        buffers = bed.pages.buffers(6)
        expected = [Status.MISS if i in (3, 5) else Status.OK for i in range(6)]
        assert storage.batch_get(keys, buffers) == expected
        assert [fault is None for fault in bed.pages.faults(keys, buffers)] == [
            status == Status.OK for status in expected
        ]
        assert storage.clear(soon()) == 4
        assert storage.batch_exists(keys) == [False] * 6
        assert storage.batch_put(keys, bed.pages.sealed(keys)) == [Status.OK] * 6
    assert {name for name in os.environ if name.startswith("AIBRIX")} == before


@pytest.mark.slow
def test_a_database_that_another_process_uses_is_refused(short_dir: Path) -> None:
    bed = AibrixBed(short_dir)
    with bed.opened(), pytest.raises(StorageError, match="another process uses this folder"):
        bed.storage().open(soon())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AibrixBed, AibrixFilesBed])
def test_room_that_must_stay_free_stays_free(kind: type[AibrixBed], short_dir: Path) -> None:
    bed = kind(short_dir)
    with bed.opened(bed.storage(min_free_space=1 << 50)) as storage:
        keys = page_keys(2, bed.identity)
        assert storage.batch_put(keys, bed.pages.sealed(keys)) == [Status.FULL] * 2

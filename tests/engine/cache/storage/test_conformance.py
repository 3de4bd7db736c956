"""What every storage backend does alike, on the real thing where one can be started."""

from __future__ import annotations

import gc
import random
import secrets
import threading
import time
from contextlib import suppress

import psutil
import pytest

from engine.cache.storage.base import Status, Storage, StorageError
from engine.cache.storage.records import Fault
from tests.engine.cache.storage.beds import Bed, Damage
from tests.engine.cache.storage.pages import page_keys, seen, soon
from tests.fakes.waiting import PATIENCE_S


def fill(bed: Bed, storage: Storage, count: int = 8, start: int = 0) -> list[bytes]:
    keys = page_keys(count, bed.identity, start)
    assert storage.batch_put(keys, bed.pages.sealed(keys)) == [Status.OK] * count
    return keys


def test_a_page_comes_back_as_it_was_written(bed: Bed) -> None:
    with bed.opened() as storage:
        keys = fill(bed, storage)
        assert seen(storage, keys)
        random.Random(1).shuffle(keys)
        buffers = bed.pages.buffers(len(keys))
        assert storage.batch_get(keys, buffers) == [Status.OK] * len(keys)
        assert bed.pages.faults(keys, buffers) == [None] * len(keys)


def test_an_empty_batch_is_answered(bed: Bed) -> None:
    with bed.opened() as storage:
        assert storage.batch_exists([]) == []
        assert storage.batch_get([], []) == []
        assert storage.batch_put([], []) == []
        storage.batch_delete([])


def test_a_page_written_twice_is_there_once(bed: Bed) -> None:
    with bed.opened() as storage:
        keys = fill(bed, storage, 3)
        again = [*keys, keys[0]]
        assert storage.batch_put(again, bed.pages.sealed(again)) == [Status.OK] * 4
        buffers = bed.pages.buffers(3)
        assert storage.batch_get(keys, buffers) == [Status.OK] * 3
        assert bed.pages.faults(keys, buffers) == [None] * 3


def test_missing_pages_leave_the_others_whole(bed: Bed) -> None:
    with bed.opened() as storage:
        keys = page_keys(8, bed.identity)
        kept = [keys[i] for i in (0, 2, 3, 7)]
        storage.batch_put(kept, bed.pages.sealed(kept))
        assert seen(storage, kept)
        assert storage.batch_exists(keys) == [key in kept for key in keys]
        buffers = bed.pages.buffers(8)
        expected = [Status.OK if key in kept else Status.MISS for key in keys]
        assert storage.batch_get(keys, buffers) == expected
        faults = bed.pages.faults(keys, buffers)
        assert [fault is None for fault in faults] == [key in kept for key in keys]


def test_deleted_pages_are_gone_and_can_be_written_again(bed: Bed) -> None:
    with bed.opened() as storage:
        keys = fill(bed, storage, 4)
        storage.batch_delete([keys[1], keys[2], secrets.token_bytes(48)])
        found = storage.batch_get(keys, bed.pages.buffers(4))
        assert found == [Status.OK, Status.MISS, Status.MISS, Status.OK]
        fill(bed, storage, 4)
        assert storage.batch_get(keys, bed.pages.buffers(4)) == [Status.OK] * 4


@pytest.mark.parametrize("how", ["cut", "flip"])
def test_a_damaged_page_never_passes(fragile: Bed, how: Damage) -> None:
    with fragile.opened() as storage:
        keys = fill(fragile, storage, 3)
    fragile.damage(keys[2], how)
    with fragile.opened() as storage:
        buffers = fragile.pages.buffers(3)
        found = storage.batch_get(keys, buffers)
        faults = fragile.pages.faults(keys, buffers)
    assert found[:2] == [Status.OK] * 2
    assert faults[:2] == [None] * 2
    assert found[2] in ((Status.MISS,) if how == "cut" else (Status.OK, Status.MISS, Status.ERROR))
    assert faults[2] in (Fault.FOREIGN, Fault.CORRUPT, Fault.TRUNCATED)


def test_a_record_of_another_length_is_a_miss_and_can_be_replaced(bed: Bed) -> None:
    keys = page_keys(3, bed.identity)
    pages, bed.pages = bed.pages, type(bed.pages)(payload_bytes=4000)
    with bed.opened(bed.storage(1)) as other:
        assert other.batch_put(keys, bed.pages.sealed(keys)) == [Status.OK] * 3
        bed.pages = pages
        with bed.opened() as storage:
            assert storage.batch_get(keys, bed.pages.buffers(3)) == [Status.MISS] * 3
            storage.batch_delete(keys)
            fill(bed, storage, 3)
            buffers = bed.pages.buffers(3)
            assert storage.batch_get(keys, buffers) == [Status.OK] * 3
            assert bed.pages.faults(keys, buffers) == [None] * 3


def test_what_is_kept_is_found_after_opening_again(keeping: Bed) -> None:
    with keeping.opened() as storage:
        keys = fill(keeping, storage)
    with keeping.opened() as storage:
        assert seen(storage, keys)
        buffers = keeping.pages.buffers(len(keys))
        assert storage.batch_get(keys, buffers) == [Status.OK] * len(keys)
        assert keeping.pages.faults(keys, buffers) == [None] * len(keys)


def test_ranks_read_what_the_others_write(bed: Bed) -> None:
    with bed.opened(bed.storage(0)) as first, bed.opened(bed.storage(1)) as second:
        keys = fill(bed, first, 4)
        more = fill(bed, second, 4, start=4)
        for storage, wanted in ((second, keys), (first, more)):
            if not storage.is_shared:
                assert not any(storage.batch_exists(wanted))
            else:
                assert seen(storage, wanted)
                buffers = bed.pages.buffers(4)
                assert storage.batch_get(wanted, buffers) == [Status.OK] * 4
                assert bed.pages.faults(wanted, buffers) == [None] * 4


def test_reads_and_writes_go_on_side_by_side(bed: Bed) -> None:
    with bed.opened() as storage:
        keys = fill(bed, storage, 8)
        assert seen(storage, keys)
        wrong: list[object] = []
        reading = threading.Thread(target=lambda: wrong.extend(_read(bed, storage, keys)))
        reading.start()
        for start in range(8, 40, 8):
            fill(bed, storage, 8, start)
        reading.join(PATIENCE_S)
        assert not reading.is_alive()
        assert wrong == []


def _read(bed: Bed, storage: Storage, keys: list[bytes]) -> list[object]:
    wrong: list[object] = []
    buffers = bed.pages.spare
    for _ in range(10):
        for buffer in buffers:
            buffer[:] = bytes(len(buffer))
        wrong += [s for s in storage.batch_get(keys, buffers) if s != Status.OK]
        wrong += [f for f in bed.pages.faults(keys, buffers) if f is not None]
    return wrong


def test_clear_removes_this_identity_and_nothing_else(bed: Bed) -> None:
    other = secrets.token_bytes(16)
    foreign = page_keys(3, other)
    with bed.opened(bed.storage(identity=other)) as storage:
        storage.batch_put(foreign, bed.pages.sealed(foreign))
        with bed.opened() as own:
            keys = fill(bed, own, 5)
            if not bed.clears:
                with pytest.raises(StorageError, match=r"the 5 that .* are removed"):
                    own.clear(soon())
                assert own.batch_exists(keys) == [False] * 5
                return
            assert own.clear(soon()) == 5
            assert own.batch_get(keys, bed.pages.buffers(5)) == [Status.MISS] * 5
            assert own.batch_exists(keys) == [False] * 5
            assert own.clear(soon()) == 0
            fill(bed, own, 5)
        assert storage.batch_get(foreign, bed.pages.buffers(3)) == [Status.OK] * 3


def test_a_full_store_says_so_or_evicts(small: Bed) -> None:
    with small.opened(small.tiny()) as storage:
        for start in range(0, 40, 8):
            keys = page_keys(8, small.identity, start)
            found = storage.batch_put(keys, small.pages.sealed(keys))
            assert set(found) <= {Status.OK, Status.FULL}
        keys = page_keys(40, small.identity)
        buffers = small.pages.buffers(40)
        found = storage.batch_get(keys, buffers)
        faults = small.pages.faults(keys, buffers)
        assert set(found) <= {Status.OK, Status.MISS}
        assert 1 <= found.count(Status.OK) <= small.slots_when_full
        assert [f for f, s in zip(faults, found, strict=True) if s == Status.OK and f] == []


def test_a_server_that_is_not_there_is_named_in_time(served: Bed) -> None:
    served.kill()
    storage = served.storage()
    with pytest.raises(StorageError, match=r"127\.0\.0\.1") as caught:
        storage.open(soon(5))
    assert str(caught.value)[0].islower()
    storage.close(soon())


def test_a_server_that_dies_costs_pages_and_not_the_caller(served: Bed) -> None:
    served.io_timeout = served.short_io_timeout
    with served.opened() as storage:
        keys = fill(served, storage, 4)
        served.kill()
        _assert_bounded(served, storage, keys)


def test_a_server_that_hangs_does_not_hang_the_caller(served: Bed) -> None:
    served.io_timeout = served.short_io_timeout
    with served.opened() as storage:
        keys = fill(served, storage, 4)
        served.freeze()
        try:
            _assert_bounded(served, storage, keys)
        finally:
            served.thaw()
        assert _settles(served, storage, keys)


def _settles(bed: Bed, storage: Storage, keys: list[bytes]) -> bool:
    """True once calls work again."""
    until = soon()
    while time.monotonic() < until:
        with suppress(Exception):
            fill(bed, storage, len(keys))
            buffers = bed.pages.buffers(len(keys))
            if storage.batch_get(keys, buffers) == [Status.OK] * len(keys):
                return bed.pages.faults(keys, buffers) == [None] * len(keys)
        time.sleep(0.1)
    return False


def _assert_bounded(bed: Bed, storage: Storage, keys: list[bytes]) -> None:
    """No call answers OK, and each returns."""
    calls = (
        lambda: storage.batch_get(keys, bed.pages.buffers(len(keys))),
        lambda: storage.batch_put(keys, bed.pages.sealed(keys)),
        lambda: [Status.OK if found else Status.MISS for found in storage.batch_exists(keys)],
    )
    for call in calls:
        found: list[Status] = []
        with suppress(Exception):  # what the guard turns into ERROR
            found = call()
        assert Status.OK not in found


def _sizes() -> tuple[int, int, int]:
    gc.collect()
    process = psutil.Process()
    return process.num_fds(), process.num_threads(), process.memory_info().rss


def _cycle(bed: Bed, count: int) -> None:
    for i in range(count):
        storage = bed.storage()
        storage.open(soon())
        keys = page_keys(2, bed.identity, i % 4)
        storage.batch_put(keys, bed.pages.sealed(keys))
        storage.batch_get(keys, bed.pages.buffers(2))
        storage.close(soon())


def _assert_no_growth(bed: Bed, count: int) -> None:
    _cycle(bed, 2 if count > 5 else 1)
    fds, threads, rss = _sizes()
    _cycle(bed, count)
    after = _sizes()
    assert after[0] <= fds + bed.spare_fds
    assert after[1] <= threads + bed.spare_threads
    assert after[2] - rss < 24 << 20


def test_opening_and_closing_leaves_nothing_behind(bed: Bed) -> None:
    _assert_no_growth(bed, bed.quick_cycles)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fifty_times_opening_and_closing_leaves_nothing_behind(bed: Bed) -> None:
    _assert_no_growth(bed, 50)


def test_closing_is_harmless_at_any_time(bed: Bed) -> None:
    storage = bed.storage()
    storage.close(soon())
    storage.open(soon())
    storage.close(soon())
    storage.close(soon())

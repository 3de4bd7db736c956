"""The file backend: what it keeps within its cap, on a full disk, and after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from engine.cache.storage.base import Status, StorageError
from engine.cache.storage.file import FileStorage
from engine.cache.storage.file_writer import SegmentWriter
from tests.engine.cache.storage.beds import FileBed
from tests.engine.cache.storage.pages import page_keys, seen, soon
from tests.fakes.tiny_disk import remount, tiny_disk
from tests.fakes.waiting import PATIENCE_S

ROOT = Path(__file__).parents[4]


@pytest.fixture
def bed(short_dir: Path) -> FileBed:
    return FileBed(short_dir)


def opened(bed: FileBed, dp_rank: int = 0, **config: object) -> FileStorage:
    storage = bed.storage(dp_rank, **config)
    storage.open(soon())
    return storage


def put(bed: FileBed, storage: FileStorage, keys: list[bytes]) -> list[Status]:
    return storage.batch_put(keys, bed.pages.sealed(keys))


def get(bed: FileBed, storage: FileStorage, keys: list[bytes]) -> list[Status]:
    """Statuses; a page that is there is whole."""
    found: list[Status] = []
    for start in range(0, len(keys), 32):
        part = keys[start : start + 32]
        buffers = bed.pages.buffers(len(part))
        statuses = storage.batch_get(part, buffers)
        faults = bed.pages.faults(part, buffers)
        assert [f for f, s in zip(faults, statuses, strict=True) if s == Status.OK and f] == []
        found += statuses
    return found


def on_disk(bed: FileBed) -> int:
    return sum(path.stat().st_blocks * 512 for path in bed.folder.rglob("*.seg"))


def test_a_second_engine_in_the_same_folder_is_told_so(bed: FileBed) -> None:
    storage = opened(bed)
    storage.close(soon())
    (lock,) = bed.folder.rglob("LOCK")
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None and other.stdout.readline() == b"held\n"
    with pytest.raises(StorageError, match=r"rank-0 .* in use by another process"):
        bed.storage().open(soon())
    other.communicate()
    opened(bed).close(soon())


HOLD_LOCK = """
import fcntl, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_one_that_takes_the_place_of_another_shares_its_folder(bed: FileBed) -> None:
    first = opened(bed)
    keys = page_keys(8, bed.identity)
    assert put(bed, first, keys[:4]) == [Status.OK] * 4
    second = opened(bed, max_size=5 * bed.pages.record_bytes)
    assert put(bed, second, keys[4:]) == [Status.OK] * 4
    assert get(bed, first, keys) == [Status.OK] * 8  # the first one's limits still hold
    first.close(soon())
    assert on_disk(bed) <= 5 * bed.pages.record_bytes  # now the second one's
    more = page_keys(5, bed.identity, start=100)
    put(bed, second, more)
    assert on_disk(bed) <= 5 * bed.pages.record_bytes
    second.close(soon())
    third = opened(bed)
    assert get(bed, third, more[-1:]) == [Status.OK]
    third.close(soon())


def test_a_folder_that_hangs_holds_up_no_other(
    bed: FileBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, begun, goes_on = bed.storage(), threading.Event(), threading.Event()
    load = hanging._load

    def hangs(deadline: float) -> SegmentWriter:
        begun.set()
        goes_on.wait()
        return load(deadline)

    monkeypatch.setattr(hanging, "_load", hangs)
    opening = threading.Thread(target=hanging.open, args=(soon(),))
    opening.start()
    try:
        assert begun.wait(PATIENCE_S)
        opened(bed, dp_rank=1).close(soon())
        with pytest.raises(StorageError, match="was being opened or closed"):
            bed.storage().open(time.monotonic() + 0.1)
    finally:
        goes_on.set()
        opening.join()
    same = opened(bed)
    hanging.close(soon())
    same.close(soon())


def test_the_cap_is_never_passed(bed: FileBed) -> None:
    cap = 41 * bed.pages.record_bytes
    storage = opened(bed, max_size=cap)
    keys = page_keys(200, bed.identity)
    for i in range(0, 200, 5):
        assert put(bed, storage, keys[i : i + 5]) == [Status.OK] * 5
        assert on_disk(bed) <= cap
        assert storage.stats().used_bytes == on_disk(bed)
    kept = [status == Status.OK for status in get(bed, storage, keys)]
    assert kept == [False] * (200 - sum(kept)) + [True] * sum(kept)  # the newest ones
    assert 30 <= sum(kept) <= 41
    assert storage.stats().stored_pages == sum(kept)
    storage.close(soon())


def test_a_page_that_was_read_outlives_its_segment(bed: FileBed) -> None:
    storage = opened(bed, max_size=80 * bed.pages.record_bytes)
    keys = page_keys(200, bed.identity)
    put(bed, storage, keys[:10])
    for i in range(10, 200, 10):
        assert get(bed, storage, keys[3:4]) == [Status.OK]
        put(bed, storage, keys[i : i + 10])
    assert get(bed, storage, keys[:10]).count(Status.OK) == 1
    storage.close(soon())


def test_a_lower_cap_removes_the_oldest_pages(bed: FileBed) -> None:
    storage = opened(bed, max_size=80 * bed.pages.record_bytes)
    keys = page_keys(60, bed.identity)
    put(bed, storage, keys[:30])
    put(bed, storage, keys[30:])
    storage.close(soon())
    storage = opened(bed, max_size=40 * bed.pages.record_bytes)
    assert on_disk(bed) <= 40 * bed.pages.record_bytes
    assert get(bed, storage, keys)[-20:] == [Status.OK] * 20
    storage.close(soon())


def test_a_segment_that_cannot_be_removed_does_not_stop_eviction(bed: FileBed) -> None:
    storage = opened(bed, max_size=24 * bed.pages.record_bytes)
    keys = page_keys(60, bed.identity)
    put(bed, storage, keys[:10])
    oldest = bed.segments()[0]
    oldest.unlink()
    oldest.mkdir()  # the one thing that unlink refuses to root, too
    for i in range(10, 60, 5):
        assert put(bed, storage, keys[i : i + 5]) == [Status.OK] * 5
    assert get(bed, storage, keys[50:]) == [Status.OK] * 10
    storage.close(soon())


def test_a_page_larger_than_the_cap_is_refused_at_once(bed: FileBed) -> None:
    bed.pages = type(bed.pages)(payload_bytes=100_000, count=2)
    with pytest.raises(StorageError, match=r"max_size is 65536 bytes; one page has 102400"):
        opened(bed, max_size=1 << 16)


def test_room_that_must_stay_free_stays_free(bed: FileBed) -> None:
    storage = opened(bed, min_free_space=1 << 50)
    keys = page_keys(3, bed.identity)
    assert put(bed, storage, keys) == [Status.FULL] * 3
    assert bed.segments() == []
    storage.close(soon())


def test_a_disk_of_two_megabytes_keeps_what_fits(bed: FileBed) -> None:
    with tiny_disk(bed.folder / "disk", 2 << 20) as disk:
        storage = opened(bed, file_storage_path=str(disk))
        keys = page_keys(200, bed.identity)
        for i in range(0, 200, 8):
            assert set(put(bed, storage, keys[i : i + 8])) == {Status.OK}
        kept = get(bed, storage, keys).count(Status.OK)
        assert kept > 50
        storage.close(soon())
        storage = opened(bed, file_storage_path=str(disk))
        assert get(bed, storage, keys).count(Status.OK) == kept
        storage.close(soon())


def test_a_disk_that_others_fill_costs_pages_until_there_is_room(bed: FileBed) -> None:
    with tiny_disk(bed.folder / "disk", 2 << 20) as disk:
        storage = opened(bed, file_storage_path=str(disk))
        keys = page_keys(80, bed.identity)
        put(bed, storage, keys[:20])
        ballast = disk / "ballast"
        with ballast.open("wb") as file:
            while _grows(file.fileno()):
                pass
        found = [put(bed, storage, keys[i : i + 1])[0] for i in range(20, 60)]
        assert set(found) <= {Status.OK, Status.FULL}
        assert get(bed, storage, keys[:60]).count(Status.OK) >= 1
        assert {path.name for path in disk.iterdir()} == {"ballast", storage._model_name}
        storage.close(soon())
        ballast.unlink()
        storage = opened(bed, file_storage_path=str(disk))
        assert put(bed, storage, keys[60:]) == [Status.OK] * 20
        assert get(bed, storage, keys[60:]) == [Status.OK] * 20
        storage.close(soon())


def _grows(fd: int) -> bool:
    try:
        return os.write(fd, bytes(4096)) > 0
    except OSError:
        return False


def test_a_full_disk_at_the_very_start_is_no_error(bed: FileBed) -> None:
    with tiny_disk(bed.folder / "disk", 2 << 20) as disk:
        (disk / "ballast").write_bytes(bytes((2 << 20) - 4096))
        storage = opened(bed, file_storage_path=str(disk))
        keys = page_keys(2, bed.identity)
        assert put(bed, storage, keys) == [Status.FULL] * 2
        storage.close(soon())


@pytest.mark.parametrize("direct_io", ["off", "auto"])
def test_a_process_killed_while_it_writes_leaves_no_broken_page(
    bed: FileBed, direct_io: str
) -> None:
    script = """
import sys, pathlib
from tests.engine.cache.storage.beds import FileBed
from tests.engine.cache.storage.pages import page_keys, soon
bed = FileBed(pathlib.Path(sys.argv[1]))
bed.identity = bytes.fromhex(sys.argv[2])
storage = bed.storage(direct_io=sys.argv[3], max_size=200 * bed.pages.record_bytes)
storage.open(soon())
for start in range(0, 1 << 30, 8):
    keys = page_keys(8, bed.identity, start)
    storage.batch_put(keys, bed.pages.sealed(keys))
    print(start + 8, flush=True)
"""
    reached = 0
    for round_ in range(3):
        arguments = [str(bed.folder), bed.identity.hex(), direct_io]
        process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        with process:
            while reached < 60 * (round_ + 1):
                reached = int(process.stdout.readline())
            time.sleep(0.001 * round_)
            process.send_signal(signal.SIGKILL)
        storage = opened(bed, direct_io=direct_io, max_size=200 * bed.pages.record_bytes)
        found = get(bed, storage, page_keys(reached, bed.identity))
        assert found[-50:] == [Status.OK] * 50
        assert {path.suffix for path in bed.folder.rglob("*") if path.is_file()} == {"", ".seg"}
        storage.close(soon())


def test_a_torn_tail_ends_what_is_found_and_is_written_over(bed: FileBed) -> None:
    storage = opened(bed)
    keys = page_keys(10, bed.identity)
    put(bed, storage, keys)
    storage.close(soon())
    with bed.segments()[0].open("r+b") as file:
        file.seek(7 * bed.pages.record_bytes + 20)
        file.write(b"\xff" * 8)
    storage = opened(bed)
    assert get(bed, storage, keys) == [Status.OK] * 7 + [Status.MISS] * 3
    put(bed, storage, keys)
    assert get(bed, storage, keys) == [Status.OK] * 10
    assert len(bed.segments()) == 1
    storage.close(soon())


def test_a_deleted_page_stays_deleted_after_opening_again(bed: FileBed) -> None:
    storage = opened(bed)
    keys = page_keys(6, bed.identity)
    put(bed, storage, keys)
    storage.batch_delete(keys[2:3])
    storage.close(soon())
    storage = opened(bed)
    assert [status == Status.OK for status in get(bed, storage, keys)] == [
        *(True, True, False),
        *(True, True, True),
    ]
    storage.close(soon())


def test_a_segment_removed_by_someone_is_a_miss_and_not_the_end(bed: FileBed) -> None:
    storage = opened(bed)
    keys = page_keys(12, bed.identity)
    put(bed, storage, keys[:6])
    for path in bed.segments():
        path.unlink()
    assert get(bed, storage, keys[:6]) == [Status.MISS] * 6
    assert put(bed, storage, keys) == [Status.OK] * 12
    assert get(bed, storage, keys) == [Status.OK] * 12
    storage.close(soon())


def test_another_ranks_pages_are_not_written_twice(bed: FileBed) -> None:
    first, second = opened(bed, 0), opened(bed, 1)
    keys = page_keys(4, bed.identity)
    put(bed, first, keys)
    assert seen(second, keys)
    assert put(bed, second, keys) == [Status.OK] * 4
    assert second.stats().stored_pages == 0
    first.clear(soon())  # What one rank removes, another one writes again.
    assert put(bed, second, keys) == [Status.OK] * 4
    assert second.stats().stored_pages == 4
    first.close(soon())
    second.close(soon())


def test_clear_leaves_files_of_others_alone(bed: FileBed) -> None:
    storage = opened(bed)
    put(bed, storage, page_keys(4, bed.identity))
    folder = bed.segments()[0].parent
    foreign = [folder / "notes.txt", folder.parent / "readme", bed.folder / "0000000001.seg"]
    for path in foreign:
        path.write_text("mine")
    assert storage.clear(soon()) == 4
    assert all(path.exists() for path in foreign)
    assert [path for path in bed.segments() if path not in foreign] == []
    storage.close(soon())
    assert sorted(path.name for path in folder.iterdir()) == ["LOCK", "notes.txt"]


def test_a_link_out_of_the_root_is_refused(bed: FileBed, tmp_path: Path) -> None:
    (bed.folder / "out").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="not under an allowed storage root"):
        opened(bed, file_storage_path=str(bed.folder / "out"))
    storage = bed.storage()
    (bed.folder / "kv-storage").mkdir()
    (bed.folder / "kv-storage" / storage._model_name).symlink_to(tmp_path)
    with pytest.raises(StorageError, match="cannot be used"):
        storage.open(soon())
    assert list(tmp_path.iterdir()) == []


def test_a_root_may_be_reached_by_a_link(bed: FileBed, tmp_path: Path) -> None:
    real, bed.folder = bed.folder, tmp_path / "link"
    bed.folder.symlink_to(real)
    for config in ({}, {"file_storage_path": str(bed.folder / "named")}):
        opened(bed, **config).close(soon())
    assert (real / "kv-storage").is_dir() and (real / "named").is_dir()


def test_the_folder_that_nobody_named_may_not_lead_out_of_the_root(
    bed: FileBed, tmp_path: Path
) -> None:
    (bed.folder / "kv-storage").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="not under an allowed storage root"):
        opened(bed)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_a_folder_is_named(bed: FileBed) -> None:
    (bed.folder / "taken").write_text("")
    with pytest.raises(StorageError, match="file_storage_path cannot be made: File exists"):
        opened(bed, file_storage_path=str(bed.folder / "taken"))
    with pytest.raises(StorageError, match="file_storage_path cannot be made: Not a directory"):
        opened(bed, file_storage_path=str(bed.folder / "taken" / "below"))


def test_a_root_that_does_not_exist_is_named(bed: FileBed) -> None:
    bed.folder /= "gone"
    with pytest.raises(StorageError, match=r"root of file_storage_path .* does not exist"):
        opened(bed)


def test_a_disk_mounted_read_only_is_named(bed: FileBed) -> None:
    with tiny_disk(bed.folder / "disk", 1 << 20) as disk:
        remount(disk, "ro")
        with pytest.raises(StorageError, match="Read-only file system"):
            opened(bed, file_storage_path=str(disk))


@pytest.mark.parametrize("direct_io", ["auto", "off"])
@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_no_file_is_left_but_segments_and_the_lock(bed: FileBed, kind: str, direct_io: str) -> None:
    with ExitStack() as stack:
        if kind == "memory":
            bed.folder = stack.enter_context(tiny_disk(bed.folder / "disk", 2 << 20))
        storage = opened(bed, direct_io=direct_io)
        keys = page_keys(4, bed.identity)
        assert put(bed, storage, keys) == [Status.OK] * 4
        assert get(bed, storage, keys) == [Status.OK] * 4
        left = {path.suffix or path.name for path in bed.folder.rglob("*") if path.is_file()}
        assert left == {"LOCK", ".seg"}
        storage.close(soon())

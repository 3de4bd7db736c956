"""The NIXL backend: what its plugins leave behind, and why they refuse."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.cache.storage.base import Status, Storage, StorageError
from tests.engine.cache.storage.beds import NixlFilesBed, NixlObjectsBed
from tests.engine.cache.storage.pages import page_keys, soon
from tests.fakes.tiny_disk import tiny_disk

pytest.importorskip("nixl_cu12", reason="the optional package nixl_cu12 is not installed")


@pytest.fixture
def files(short_dir: Path) -> NixlFilesBed:
    return NixlFilesBed(short_dir)


@pytest.fixture
def objects(short_dir: Path) -> Iterator[NixlObjectsBed]:
    made = NixlObjectsBed(short_dir)
    made.start()
    yield made
    made.stop()


def refused(storage: Storage) -> str:
    with pytest.raises(StorageError) as caught:
        storage.open(soon())
    assert "secret-of-the-test" not in f"{caught.value} {caught.value.__cause__!r}"
    return str(caught.value)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("api", ["auto", "aio", "posix_aio"])
def test_each_way_of_asking_the_kernel_works(files: NixlFilesBed, api: str, direct: bool) -> None:
    with files.opened(files.storage(posix_api=api, use_direct_io=direct)) as storage:
        keys = page_keys(8, files.identity)
        assert storage.batch_put(keys[:6], files.pages.sealed(keys[:6])) == [Status.OK] * 6
        os.truncate(files.path(keys[3]), 100)
        buffers = files.pages.buffers(8)
        expected = [Status.MISS if i in (3, 6, 7) else Status.OK for i in range(8)]
        assert storage.batch_get(keys, buffers) == expected
        assert [fault is None for fault in files.pages.faults(keys, buffers)] == [
            status == Status.OK for status in expected
        ]


def test_a_disk_that_is_full_keeps_no_part_of_a_page(files: NixlFilesBed) -> None:
    with tiny_disk(files.folder / "disk", 1 << 20) as disk:
        with files.opened(files.storage(path=str(disk))) as storage:
            found: list[Status] = []
            keys = page_keys(80, files.identity)
            for i in range(0, 80, 8):
                part = keys[i : i + 8]
                found += storage.batch_put(part, files.pages.sealed(part))
            assert set(found) == {Status.OK, Status.FULL}
            sizes = {path.stat().st_size for path in disk.rglob("*") if path.is_file()}
            assert sizes == {files.pages.record_bytes}
            kept = sum(storage.batch_exists(keys))
            assert kept == found.count(Status.OK)
            assert storage.clear(soon()) == kept
        with files.opened(files.storage(path=str(disk), min_free_space=1 << 30)) as storage:
            assert storage.batch_put(keys[:1], files.pages.sealed(keys[:1])) == [Status.FULL]


def test_clear_leaves_files_of_others_alone(files: NixlFilesBed) -> None:
    with files.opened() as storage:
        keys = page_keys(3, files.identity)
        storage.batch_put(keys, files.pages.sealed(keys))
        folder = files.path(keys[0]).parent
        (folder / "notes").write_text("mine")
        assert storage.clear(soon()) == 3
        assert [path.name for path in files.folder.rglob("*") if path.is_file()] == ["notes"]


def test_ranks_that_clear_at_once_do_not_trip_over_each_other(files: NixlFilesBed) -> None:
    with files.opened() as one, files.opened(files.storage(dp_rank=1)) as two:
        keys = page_keys(64, files.identity)
        for _ in range(8):
            for part in (keys[:32], keys[32:]):
                assert one.batch_put(part, files.pages.sealed(part)) == [Status.OK] * 32
            with ThreadPoolExecutor(2) as pool:
                gone = list(pool.map(lambda storage: storage.clear(soon()), (one, two)))
            assert sum(gone) == 64
            assert not any(one.batch_exists(keys))


def test_a_page_that_is_a_link_is_a_miss(files: NixlFilesBed, tmp_path: Path) -> None:
    with files.opened() as storage:
        keys = page_keys(1, files.identity)
        storage.batch_put(keys, files.pages.sealed(keys))
        path = files.path(keys[0])
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        assert storage.batch_get(keys, files.pages.buffers(1)) == [Status.MISS]


def test_what_a_killed_process_was_writing_is_swept(files: NixlFilesBed) -> None:
    with files.opened():
        pass
    (folder,) = files.folder.rglob("tmp")
    for name, age_s in (("old", 7200), ("new", 0)):
        (folder / name).write_bytes(b"x")
        os.utime(folder / name, (time.time() - age_s,) * 2)
    with files.opened():
        assert [path.name for path in folder.iterdir()] == ["new"]


def test_a_folder_outside_of_the_roots_is_refused(files: NixlFilesBed) -> None:
    assert refused(files.storage(path="/var")) == "path is not under an allowed storage root"


def test_a_bucket_that_does_not_exist_is_named(objects: NixlObjectsBed) -> None:
    said = refused(objects.storage(bucket="another-bucket"))
    assert said.endswith("cannot be used: there is no such bucket")
    assert refused(objects.storage(bucket="")) == "bucket has 3 characters or more"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://10.0.0.1:9000", "not an allowed storage endpoint"),
        ("", "s3.us-east-1.amazonaws.com:443, which is not an allowed storage endpoint"),
        ("ftp://127.0.0.1", "endpoint_override is not http"),
        ("http://user:secret-of-the-test@127.0.0.1:1", "endpoint_override is not http"),
    ],
)
def test_an_endpoint_that_it_may_not_use_is_named(
    objects: NixlObjectsBed, url: str, said: str
) -> None:
    assert said in refused(objects.storage(endpoint_override=url))


def test_clear_leaves_objects_of_others_alone(objects: NixlObjectsBed) -> None:
    objects.s3("PUT", "quiesce/readme", b"mine")
    with objects.opened() as storage:
        keys = page_keys(3, objects.identity)
        storage.batch_put(keys, objects.pages.sealed(keys))
        assert storage.clear(soon()) == 3
    assert objects.s3("GET", "quiesce/readme") == b"mine"

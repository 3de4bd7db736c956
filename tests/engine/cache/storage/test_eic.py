"""The EIC backend, on a stand-in for its package: what fails as a whole, and what in part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cache.storage.base import Status, StorageError
from tests.engine.cache.storage.beds import VENDORS, EicBed
from tests.engine.cache.storage.pages import page_keys, soon


@pytest.fixture
def bed(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EicBed]:
    monkeypatch.syspath_prepend(VENDORS)
    made = EicBed(short_dir)
    yield made
    made.stop()


def test_a_batch_of_missing_pages_is_no_error(bed: EicBed) -> None:
    with bed.opened() as storage:
        keys = page_keys(3, bed.identity)
        assert storage.batch_get(keys, bed.pages.buffers(3)) == [Status.MISS] * 3


@pytest.mark.parametrize("call", ["mset", "mget"])
def test_a_call_that_fails_is_an_error_of_all_its_pages(bed: EicBed, call: str) -> None:
    with bed.opened() as storage:
        keys = page_keys(3, bed.identity)
        storage.batch_put(keys, bed.pages.sealed(keys))
        (bed.kept / "faults").write_text(call)
        with pytest.raises(Exception, match="EIC answered"):
            if call == "mset":
                storage.batch_put(keys, bed.pages.sealed(keys))
            else:
                storage.batch_get(keys, bed.pages.buffers(3))


def test_namespaces_are_apart(bed: EicBed) -> None:
    keys = page_keys(3, bed.identity)
    with bed.opened(bed.storage(eic_namespace="a")) as storage:
        storage.batch_put(keys, bed.pages.sealed(keys))
    with bed.opened(bed.storage(eic_namespace="b")) as storage:
        assert storage.batch_exists(keys) == [False] * 3


def test_an_instance_that_is_not_there_is_named(bed: EicBed) -> None:
    bed.kept.rmdir()
    with pytest.raises(StorageError, match=r"EIC at 127\.0\.0\.1:12500 does not take this client"):
        bed.storage().open(soon())


def test_an_endpoint_that_is_not_listed_is_refused(bed: EicBed) -> None:
    with pytest.raises(StorageError, match="not an allowed storage endpoint"):
        bed.storage(remote_url="eic://10.0.0.1:1").open(soon())

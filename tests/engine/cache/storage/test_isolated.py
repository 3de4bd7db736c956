"""The process of an isolated backend: what it is told, and that it never outlives its parent."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engine.cache.storage.base import Storage, StorageError
from engine.cache.storage.isolated import IsolatedStorage
from tests.engine.cache.storage.beds import VENDORS, EicBed, Hf3fsBed
from tests.engine.cache.storage.pages import page_keys, soon
from tests.fakes.waiting import wait_until

ROOT = Path(__file__).parents[4]
PARENT = """
import pathlib, sys, time
from tests.engine.cache.storage.beds import VENDORS, Hf3fsBed
from tests.engine.cache.storage.pages import soon
sys.path.insert(0, str(VENDORS))
storage = Hf3fsBed(pathlib.Path(sys.argv[1])).storage()
storage.open(soon())
print(storage.child_pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def bed(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Hf3fsBed:
    monkeypatch.syspath_prepend(VENDORS)
    return Hf3fsBed(short_dir)


def child_of(storage: Storage) -> psutil.Process:
    assert isinstance(storage, IsolatedStorage)
    return psutil.Process(storage.child_pid)


def test_it_ends_when_its_parent_is_killed(short_dir: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(short_dir)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()
        parent.send_signal(signal.SIGKILL)
        wait_until(lambda: not child.is_running() or child.status() == "zombie")


def test_ctrl_c_is_the_parents_to_handle(bed: Hf3fsBed) -> None:
    with bed.opened() as storage:
        child_of(storage).send_signal(signal.SIGINT)
        assert storage.batch_exists(page_keys(1, bed.identity)) == [False]


def test_it_is_told_nothing_in_its_arguments(bed: Hf3fsBed) -> None:
    with bed.opened() as storage:
        arguments = child_of(storage).cmdline()[1:]
        assert arguments[:3] == ["-P", "-m", "engine.cache.storage.isolated_child"]
        assert all(argument.isdecimal() for argument in arguments[3:])


def test_it_inherits_no_file_of_the_parent(bed: Hf3fsBed) -> None:
    with (bed.folder / "mine").open("w"), bed.opened() as storage:
        links = {Path(f"/proc/{child_of(storage).pid}/fd", name).resolve() for name in "3456789"}
        assert (bed.folder / "mine").resolve() not in links


def test_a_storage_that_is_closed_starts_no_process(bed: Hf3fsBed) -> None:
    before = child_count()
    storage = bed.storage()
    with bed.opened(storage):
        pass
    with pytest.raises(StorageError, match="hf3fs is not open"):
        storage.batch_exists(page_keys(1, bed.identity))
    assert child_count() <= before


def test_an_open_that_fails_leaves_no_process(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(VENDORS)
    bed = EicBed(short_dir)
    bed.kept.rmdir()
    before = child_count()
    with pytest.raises(StorageError):
        bed.storage().open(soon())
    assert child_count() <= before
    bed.stop()


def test_an_open_without_time_is_given_up(bed: Hf3fsBed) -> None:
    before = child_count()
    with pytest.raises(StorageError, match="cannot be opened"):
        bed.storage().open(soon(0))
    assert child_count() <= before


def child_count() -> int:
    return sum(_is_client(child) for child in psutil.Process().children())


def _is_client(child: psutil.Process) -> bool:
    try:
        return "engine.cache.storage.isolated_child" in child.cmdline()
    except psutil.Error:  # It has just ended.
        return False

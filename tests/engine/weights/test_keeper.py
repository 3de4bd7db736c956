"""Staging beside a model that serves, over a real runner: the swap, the way back, and every way in
which reading can fail."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from engine.ipc.sampling import SamplingParams
from engine.memory.available import available_bytes
from engine.models.forward_batch import ForwardBatch, Part, SampleSpec
from engine.protocol import UpdateWeightsFromDisk, WeightSource, WeightsView
from engine.runner.model_runner import ModelRunner
from engine.tensorfiles import header
from engine.weights import staging
from engine.weights.background import Background, Cancelled, Job
from engine.weights.errors import WeightsError
from engine.weights.group import TrainerGroups
from engine.weights.keeper import WeightKeeper
from tests.engine.weights.checkpoints import write
from tests.fakes.waiting import PATIENCE_S

PROMPT = [5, 17, 33, 9]


class Rank:
    """A runner and its keeper, driven like a rank's loop drives them."""

    def __init__(self, root: Path, kernels: Path) -> None:
        self.root = root
        self.runner = ModelRunner(
            root / "base", dtype="float32", num_pages=8, threads=1, ext_dir=kernels
        )
        self.background = Background()
        self.keeper = WeightKeeper(
            self.runner,
            self.background,
            TrainerGroups(0),
            start_dir=root / "base",
            own_dir=root / "own",
            roots=[root],
        )
        self.told: list[tuple[WeightsView | None, str]] = []

    def stage(self, name: str, **more: object) -> None:
        path = str(self.root / name)
        view = WeightsView(version="", source=WeightSource.DISK, path=path)
        operation = UpdateWeightsFromDisk(model_path=path, **more)  # type: ignore[arg-type]
        self.keeper.stage(operation, view, lambda *told: self.told.append(told))

    def until_told(self) -> tuple[WeightsView | None, str]:
        ends = time.monotonic() + PATIENCE_S
        while not self.told and time.monotonic() < ends:
            self.background.poll()
            time.sleep(0.005)
        return self.told.pop()

    def next_token(self) -> int:
        spec = SampleSpec(
            SamplingParams(temperature=0.0), prompt_ids=PROMPT, output_ids=[], stop_ids=[]
        )
        part = Part(input_ids=PROMPT, start=0, pages=[0], sample=spec)
        token = self.runner.forward(ForwardBatch([part]))[0].next_token
        assert token is not None
        return token


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path) -> Path:
    root = tmp_path_factory.mktemp("keeper")
    for seed, name in enumerate(("base", "other")):
        write(root / name, seed, smollm2_dir)
    return root


@pytest.fixture
def rank(root: Path, cpu_ext_dir: Path) -> Iterator[Rank]:
    threads = torch.get_num_threads()
    yield Rank(root, cpu_ext_dir)
    torch.set_num_threads(threads)


def test_a_swap_changes_the_answer_and_an_undo_brings_it_back(rank: Rank) -> None:
    before, serving = rank.next_token(), rank.keeper.serving
    rank.stage("other")
    assert rank.next_token() == before  # staging is not seen
    weights, error = rank.until_told()
    assert weights is not None and not error
    assert weights.version == weights.checksum[:12] and weights.num_tensors == 20
    rank.keeper.commit(weights)
    after = rank.next_token()
    assert after != before and rank.keeper.serving == weights
    rank.keeper.undo()
    assert rank.next_token() == before and rank.keeper.serving == serving
    with pytest.raises(WeightsError, match="are gone"):
        rank.keeper.undo()
    with pytest.raises(WeightsError, match="are gone"):
        rank.keeper.commit(weights)


def test_serving_goes_on_with_its_own_threads_while_it_stages(rank: Rank) -> None:
    """torch's number of threads is one a thread: staging takes one, and takes none away."""
    torch.set_num_threads(2)
    rank.stage("other")
    rank.until_told()
    assert torch.get_num_threads() == 2


def test_unstage_stops_it_and_nothing_is_told(rank: Rank) -> None:
    rank.stage("other")
    rank.keeper.unstage()
    for _ in range(100):
        rank.background.poll()
        time.sleep(0.005)
    assert rank.told == []
    assert not rank.background.is_busy
    rank.stage("other")
    assert rank.until_told()[0] is not None


@pytest.mark.parametrize("after", [0, 1, 2, 10, 20])
def test_a_disk_that_fails_in_the_middle_is_named_and_nothing_changes(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    before = rank.next_token()
    reads = 0
    preadv = os.preadv

    def failing(fd: int, buffers: list[memoryview], offset: int) -> int:
        nonlocal reads
        reads += 1
        if reads > after:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(header.os, "preadv", failing)
    rank.stage("other")
    weights, error = rank.until_told()
    assert weights is None and "Input/output error" in error
    assert rank.next_token() == before


def test_short_reads_are_read_on(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv = os.preadv

    def short(fd: int, buffers: list[memoryview], offset: int) -> int:
        return preadv(fd, [buffers[0][: max(1, len(buffers[0]) // 3)]], offset)

    rank.stage("other")
    wanted, _ = rank.until_told()
    monkeypatch.setattr(header.os, "preadv", short)
    rank.stage("other")
    assert rank.until_told()[0] == wanted


def test_it_is_refused_where_there_is_no_room_for_both(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "available_bytes", lambda: 1000)
    rank.stage("other")
    weights, error = rank.until_told()
    assert weights is None and "not enough memory for both copies" in error


def test_a_fault_of_ours_is_told_as_one_and_logged(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank.runner, "load", lambda source: 1 / 0)
    rank.stage("other")
    weights, error = rank.until_told()
    assert weights is None and error == "internal error: ZeroDivisionError; see the rank's log"


def test_another_checksum_than_the_expected_is_refused(rank: Rank) -> None:
    rank.stage("other", expected_checksum="0" * 32)
    weights, error = rank.until_told()
    assert weights is None and "not " + "0" * 32 in error


def test_it_converges_by_checksum_and_to_nothing_else(rank: Rank) -> None:
    rank.stage("other")
    weights, _ = rank.until_told()
    assert weights is not None
    rank.keeper.unstage()
    rank.keeper.converge(weights, lambda *told: rank.told.append(told))
    assert rank.until_told() == (weights, "")
    assert rank.keeper.serving == weights
    wrong = msgspec.structs.replace(weights, checksum="f" * 32)
    rank.keeper.converge(wrong, lambda *told: rank.told.append(told))
    found, error = rank.until_told()
    assert found is None and "not " + "f" * 32 in error
    assert rank.keeper.serving == weights


def test_many_updates_leave_no_memory_and_no_thread_behind(rank: Rank) -> None:
    def update(name: str) -> None:
        rank.stage(name)
        weights, error = rank.until_told()
        assert weights is not None, error
        rank.keeper.commit(weights)
        rank.keeper.unstage()

    def resident_mb() -> int:
        for _ in range(2000):  # the old copy goes on a thread of its own
            if threading.active_count() == 1:
                break
            time.sleep(0.02)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") >> 20

    for _ in range(4):
        update("other")
        update("base")
    first, threads = resident_mb(), threading.active_count()
    for _ in range(10):
        update("other")
        update("base")
    assert resident_mb() - first < 150  # one copy is 50 MB; twenty were made
    assert threading.active_count() <= threads


def test_a_cancelled_job_hears_of_it_at_its_next_note() -> None:
    job: Job[None] = Job("stage")
    job.note(1)
    job.cancel()
    with pytest.raises(Cancelled):
        job.note(2)


def test_available_memory_is_the_smaller_of_machine_and_container(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable:   40 kB\n")
    assert available_bytes(meminfo, tmp_path) == 40 * 1024
    (tmp_path / "memory.max").write_text("30000\n")
    (tmp_path / "memory.current").write_text("20000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 1000\n")
    assert available_bytes(meminfo, tmp_path) == 11_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(meminfo, tmp_path) == 40 * 1024
    assert available_bytes(tmp_path / "none", tmp_path / "none") is None

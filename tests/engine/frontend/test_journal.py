"""The journal on disk: what was acknowledged is there, whatever happens to the tail or the disk."""

from __future__ import annotations

import errno
import os
import random
import resource
from pathlib import Path

import pytest

from engine.frontend.journal import Journal, JournalError
from engine.frontend.journal_records import (
    Decided,
    Finished,
    JournalFullError,
    Record,
    Sealed,
    Started,
)
from engine.ipc.messages import ServingState
from engine.protocol import FlushCache, Mode, OperationKind, OperationResult, Outcome

OLD = ServingState()


def open_journal(path: Path, **options: int) -> Journal:
    return Journal(str(path), initial=OLD, **options)


def started(op: int, op_id: str) -> Started:
    return Started(
        op=op,
        op_id=op_id,
        operation=FlushCache(),
        mode=Mode.WAIT,
        att=1,
        timeout_s=1.0,
        incs={0: 1},
        old=OLD,
        new=OLD,
    )


def finished(op: int, op_id: str) -> Finished:
    result = OperationResult(
        op_id=op_id,
        kind=OperationKind.FLUSH_CACHE,
        mode=Mode.WAIT,
        outcome=Outcome.SUCCEEDED,
        message="done",
        ranks=[],
        started_clock_s=1.0,
        finished_clock_s=2.0,
        epoch="1-x",
    )
    return Finished(op=op, desired=OLD, result=result)


def history(count: int) -> list[Record]:
    records: list[Record] = []
    for op in range(1, count + 1):
        records += [
            started(op, f"job-{op}"),
            Decided(op=op, verdict="commit", att=1),
            finished(op, f"job-{op}"),
        ]
    return records


def test_records_survive_a_restart(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    identity, first = journal.index.engine_id, journal.begin_epoch()
    for record in [*history(3), started(4, "open"), Sealed(op_id="never")]:
        journal.append(record)
    journal.close()
    again = open_journal(tmp_path / "j")
    assert again.index.engine_id == identity
    assert list(again.index.results) == ["job-1", "job-2", "job-3"]
    assert again.index.open is not None
    assert again.index.open.op_id == "open"
    assert "never" in again.index.sealed
    assert again.begin_epoch().number == first.number + 1
    again.close()


@pytest.mark.parametrize("seed", range(20))
def test_a_torn_tail_is_cut_and_nothing_before_it_is_lost(tmp_path: Path, seed: int) -> None:
    path, rng = tmp_path / "j", random.Random(seed)
    journal = open_journal(path)
    ends = []
    for record in history(4):
        journal.append(record)
        ends.append(journal._end)
    journal.close()
    whole = path.read_bytes()
    cut = rng.randrange(ends[0], ends[-1])
    path.write_bytes(whole[:cut] + bytes(rng.randrange(256) for _ in range(rng.randrange(9))))
    again = open_journal(path)
    complete = sum(end <= cut for end in ends)
    assert again.index.last_op == (complete + 2) // 3
    assert len(again.index.results) == complete // 3
    again.append(Sealed(op_id="after"))
    again.close()
    assert "after" in open_journal(path).index.sealed


def test_every_changed_byte_of_the_last_record_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = open_journal(path)
    start = journal._end
    journal.append(Sealed(op_id="x"))
    end = journal._end
    journal.close()
    whole = path.read_bytes()
    for position in range(start, end):
        changed = bytearray(whole)
        changed[position] ^= 0x55
        path.write_bytes(bytes(changed))
        again = open_journal(path)
        assert "x" not in again.index.sealed
        again.close()


def test_two_engines_cannot_hold_one_journal(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    with pytest.raises(JournalError, match="another engine"):
        open_journal(tmp_path / "j")
    journal.close()


def test_the_memo_is_bounded_and_what_it_forgot_is_too_old(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j", memo_size=2)
    ids = [f"0190000{n}-0000-7000-8000-000000000000" for n in range(4)]
    for op, op_id in enumerate(ids, 1):
        journal.append(finished(op, op_id))
    assert list(journal.index.results) == ids[2:]
    assert [journal.index.is_too_old(op_id) for op_id in ids] == [True, True, False, False]
    assert not journal.index.is_too_old("0190000f-0000-7000-8000-000000000000")
    journal.close()


def test_compaction_keeps_what_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.frontend.journal._COMPACT_BYTES", 1000)
    journal = open_journal(tmp_path / "j", memo_size=3)
    for record in [*history(9), Sealed(op_id="s"), started(10, "open")]:
        journal.append(record)
    before = journal.index
    journal.begin_epoch()
    journal.append(Sealed(op_id="t"))
    journal.close()
    again = open_journal(tmp_path / "j", memo_size=3)
    assert again.index.engine_id == before.engine_id
    assert list(again.index.results) == list(before.results)
    assert list(again.index.sealed) == ["s", "t"]
    assert (again.index.open, again.index.last_op) == (before.open, 10)
    again.close()


def test_a_full_disk_refuses_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = open_journal(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, limits[1]))
    try:
        with pytest.raises(JournalFullError):
            journal.reserve()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    journal.append(Sealed(op_id="later"))
    journal.close()
    assert "later" in open_journal(path).index.sealed


def test_reserved_room_takes_the_records_of_an_operation_on_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = open_journal(path)
    journal.reserve()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, limits[1]))
    try:
        for record in history(1):
            journal.append(record)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    journal.close()
    again = open_journal(path)
    assert "job-1" in again.index.results
    again.close()


def test_room_is_reserved_for_several_operations_or_on_a_nearly_full_disk_for_one(
    tmp_path: Path,
) -> None:
    journal = open_journal(tmp_path / "roomy")
    journal.reserve()
    size = (tmp_path / "roomy").stat().st_size
    for record in history(50):
        journal.reserve()
        journal.append(record)
    assert (tmp_path / "roomy").stat().st_size == size
    journal.close()

    path = tmp_path / "nearly-full"
    journal = open_journal(path)
    begins = path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (begins + 300 * 1024, limits[1]))
    try:
        journal.reserve()
        for record in history(1):
            journal.append(record)
        with pytest.raises(JournalFullError):
            for record in history(2000):
                journal.reserve()
                journal.append(record)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    journal.close()


def test_room_is_reserved_anew_after_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal that was copied may have a hole where its room was."""
    journal = open_journal(tmp_path / "j")
    journal.reserve()
    journal.close()
    again = open_journal(tmp_path / "j")

    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(JournalFullError):
        again.reserve()
    again.close()


def test_a_record_that_could_not_be_read_again_is_refused(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j")
    with pytest.raises(JournalFullError):
        journal.append(Sealed(op_id="x" * (1 << 20)))
    journal.append(Sealed(op_id="later"))
    journal.close()
    again = open_journal(tmp_path / "j")
    assert list(again.index.sealed) == ["later"]
    again.close()


def test_a_journal_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    import struct
    import zlib

    import msgspec

    path = tmp_path / "j"
    open_journal(path).close()
    payload = msgspec.msgpack.encode({"type": "from_the_future", "x": 1})
    with path.open("ab") as file:
        file.write(struct.pack("<II", len(payload), zlib.crc32(payload)) + payload)
    with pytest.raises(JournalError, match="does not know"):
        open_journal(path)


def test_damage_in_the_middle_is_not_cut_like_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = open_journal(path)
    ends = [path.stat().st_size]
    for record in history(4):
        journal.append(record)
        ends.append(path.stat().st_size)
    journal.close()
    good = path.read_bytes()
    for end in ends[1:-2]:
        data = bytearray(good)
        data[end + 10] ^= 1
        path.write_bytes(data)
        with pytest.raises(JournalError, match="damaged at byte"):
            open_journal(path)
        assert path.read_bytes() == bytes(data)


def test_a_file_that_is_no_journal_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    garbage = random.Random(1).randbytes(5000)
    path.write_bytes(garbage)
    with pytest.raises(JournalError, match="damaged at byte 0"):
        open_journal(path)
    assert path.read_bytes() == garbage
    path.write_bytes(garbage[:40])  # a first record, torn
    assert open_journal(path).index.engine_id


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot open the journal"):
        open_journal(tmp_path / "file" / "journal")


def test_a_journal_does_not_grow_for_ever_while_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.frontend.journal._COMPACT_BYTES", 20_000)
    path = tmp_path / "journal"
    journal = open_journal(path, memo_size=10)
    largest = 0
    for number in range(1, 300):
        journal.reserve()
        journal.append(started(number, f"op-{number}"))
        journal.append(finished(number, f"op-{number}"))
        largest = max(largest, journal._end)
    assert largest < 30_000
    engine_id = journal.index.engine_id
    journal.close()
    again = open_journal(path, memo_size=10)
    assert again.index.engine_id == engine_id
    assert again.index.last_op == 299
    assert list(again.index.results) == [f"op-{number}" for number in range(290, 300)]


def test_a_disk_without_room_to_compact_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.frontend.journal._COMPACT_BYTES", 1000)
    path = tmp_path / "journal"
    journal = open_journal(path)
    for record in history(20):
        journal.append(record)

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("engine.frontend.journal.os.fsync", no_room)
        journal.begin_epoch()
    assert not path.with_suffix(".new").exists()
    journal.close()
    again = open_journal(path)
    assert again.index.epoch is not None
    assert again.index.results == journal.index.results

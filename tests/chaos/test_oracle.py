"""The oracle sees each thing that may go wrong: good records are changed in one place."""

from __future__ import annotations

import copy
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from tests.chaos.clients import Asked
from tests.chaos.oracle import Verdict, judge
from tests.chaos.records import Effect, EngineRecords, Entry, Job, Records, journal_records

RANKS = {0: "succeeded", 1: "succeeded"}
Case = tuple[list[Asked], Records]


def good() -> Case:
    """Two jobs: one that succeeded on both ranks, one that was taken back on the one it reached."""
    jobs = [
        Job("a", "key-a", "e", "flush_cache", "succeeded", True, dict(RANKS)),
        Job("b", "key-b", "e", "update", "failed", True, {0: "compensated", 1: "failed"}),
        Job("c", "key-c", "e", "flush_cache", "cancelled", True, {}),
    ]
    entries = [
        Entry(job.id, stage, f"job.{job.state}" if stage == "outcome" else "job.accepted")
        for job in jobs
        for stage in ("intent", "outcome")
    ]
    engine = EngineRecords("e", 2, [(1, "a"), (2, "b")])
    engine.outcomes = {"a": ["succeeded"], "b": ["failed"]}
    engine.effects = [
        Effect(0, 1, 1, "commit"),
        Effect(1, 2, 1, "commit"),
        Effect(0, 1, 2, "commit"),
        Effect(0, 1, 2, "undo"),
    ]
    asked = [Asked(job.key, "e", job.kind, {job.id}) for job in jobs]
    return asked, Records(jobs, entries, [engine])


def test_good_records_are_good() -> None:
    assert judge(*good()) == Verdict()


def _set_job(number: int, **changes: object) -> Callable[[Case], None]:
    def change(case: Case) -> None:
        case[1].jobs[number] = replace(case[1].jobs[number], **changes)  # type: ignore[arg-type]

    return change


def _no_job(case: Case) -> None:
    del case[1].jobs[2]


def _two_jobs(case: Case) -> None:
    case[1].jobs.append(replace(case[1].jobs[2], id="d"))
    case[1].entries.extend(Entry("d", e.stage, e.action) for e in case[1].entries[4:6])


def _no_outcome(case: Case) -> None:
    del case[1].entries[1]


def _two_outcomes(case: Case) -> None:
    case[1].entries.append(case[1].entries[1])


def _other_outcome(case: Case) -> None:
    case[1].entries[1] = Entry("a", "outcome", "job.failed")


def _begun_twice(case: Case) -> None:
    case[1].engines[0].started.append((3, "a"))


def _begun_by_nobody(case: Case) -> None:
    case[1].engines[0].started.append((3, "z"))


def _effect_twice(case: Case) -> None:
    case[1].engines[0].effects.append(Effect(1, 7, 1, "commit"))


def _effect_missing(case: Case) -> None:
    del case[1].engines[0].effects[1]


def _effect_stays(case: Case) -> None:
    del case[1].engines[0].effects[3]


def _effect_of_nothing(case: Case) -> None:
    case[1].engines[0].effects.append(Effect(0, 1, 9, "commit"))


def _engine_disagrees(case: Case) -> None:
    case[1].engines[0].outcomes["a"] = ["partial"]


def _never_ended(case: Case) -> None:
    case[1].engines[0].outcomes.pop("b")


def _told_another(case: Case) -> None:
    case[0][0].job_ids.add("x")


def _refused_and_kept(case: Case) -> None:
    case[0][2].job_ids, case[0][2].refused = set(), "409"


def _other_end(case: Case) -> None:
    case[0][0].end = "failed"


def _trouble(case: Case) -> None:
    case[0][0].trouble = "404"


WRONG: dict[str, tuple[Callable[[Case], None], str]] = {
    "a job is gone": (_no_job, "lost"),
    "a job is open": (_set_job(0, state="reconciling", is_ended=False), "lost"),
    "a state without an end": (_set_job(0, is_ended=False), "lost"),
    "two jobs of a key": (_two_jobs, "duplicated"),
    "two answers to a key": (_told_another, "duplicated"),
    "no outcome": (_no_outcome, "lost"),
    "two outcomes": (_two_outcomes, "duplicated"),
    "another outcome": (_other_outcome, "untrue"),
    "begun twice": (_begun_twice, "duplicated"),
    "begun by nobody": (_begun_by_nobody, "untrue"),
    "an effect twice": (_effect_twice, "duplicated"),
    "an effect missing": (_effect_missing, "lost"),
    "an effect that stays": (_effect_stays, "untrue"),
    "an effect of nothing": (_effect_of_nothing, "untrue"),
    "the engine says another": (_engine_disagrees, "untrue"),
    "never ended": (_never_ended, "lost"),
    "refused and kept": (_refused_and_kept, "untrue"),
    "interrupted": (_set_job(2, state="interrupted"), "untrue"),
    "another end was told": (_other_end, "untrue"),
    "trouble": (_trouble, "untrue"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_change_is_found(name: str) -> None:
    change, heading = WRONG[name]
    case = copy.deepcopy(good())
    change(case)
    assert getattr(judge(*case), heading), judge(*case)


def test_a_rank_that_died_after_its_commit_may_have_done_it() -> None:
    case = good()
    _effect_stays(case)
    _set_job(1, ranks={0: "unreachable", 1: "failed"})(case)
    assert judge(*case).is_clean


def _frame(record: dict[str, object]) -> bytes:
    payload = msgspec.msgpack.encode(record)
    return struct.pack("<II", len(payload), zlib.crc32(payload)) + payload


def test_a_journal_is_read_to_its_end_and_damage_is_seen() -> None:
    records: list[dict[str, object]] = [{"type": "epoch"}, {"type": "started", "op": 1}]
    data = b"".join(map(_frame, records))
    assert journal_records(data + bytes(64)) == records
    with pytest.raises(ValueError, match="damaged"):
        journal_records(data[:-1] + b"\xff")

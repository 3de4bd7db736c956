"""Job ids tell their age to an engine, and sort by it."""

from __future__ import annotations

import time

from console.ids import uuid7
from engine.frontend.journal_records import made_at_ms


def test_a_job_id_is_a_version_7_uuid_that_tells_when_it_was_made() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid7()
    after = time.time_ns() // 1_000_000
    assert made.version == 7
    assert made.variant == "specified in RFC 4122"
    told = made_at_ms(str(made))
    assert told is not None
    assert before <= told <= after


def test_ids_differ_within_a_millisecond() -> None:
    assert len({uuid7() for _ in range(10_000)}) == 10_000

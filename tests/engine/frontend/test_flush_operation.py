"""A flush from submit to result, over real rank machines: modes, deadlines, conflicts, faults."""

from __future__ import annotations

import errno
import itertools
import math

import pytest

from engine.ipc.messages import Prepare
from engine.protocol import ErrorCode, Mode, Outcome, Phase, ProtocolError, QueryStatus
from tests.engine.frontend.engine_in_memory import Engine
from tests.engine.scheduler.helpers import ask
from tests.fakes.runner import solo


@pytest.fixture
def engine() -> Engine:
    return Engine()


# ---- the seven cases of the flush wrapper's contract, for our coordinator ---------------------


def test_without_a_timeout_an_idle_engine_is_flushed_at_once(engine: Engine) -> None:
    engine.flush("a")
    assert engine.results["a"].outcome is Outcome.SUCCEEDED
    assert engine.flushes() == [1, 1]


def test_with_a_timeout_an_idle_engine_is_flushed_at_once(engine: Engine) -> None:
    engine.flush("a", 10.0)
    assert engine.results["a"].outcome is Outcome.SUCCEEDED
    assert engine.flushes() == [1, 1]


def test_a_busy_engine_defers_with_a_deadline_of_now_plus_timeout(engine: Engine) -> None:
    engine.busy()
    engine.flush("a", 10.0)
    assert "a" not in engine.results
    view = engine.operations.pending()
    assert view is not None
    assert view.deadline_clock_s == engine.now + 10.0
    assert (view.phase, view.awaited_ranks) == (Phase.WAITING_FOR_IDLE, [0])
    assert view.ranks[0].message.startswith("running=1 ")


@pytest.mark.parametrize("timeout_s", [0.0, 5.0])
def test_a_second_one_is_refused_at_once_and_names_the_first(
    engine: Engine, timeout_s: float
) -> None:  # F02
    engine.busy()
    engine.flush("a", 10.0)
    engine.advance(1.0)
    with pytest.raises(ProtocolError) as refused:
        engine.flush("b", timeout_s)
    assert refused.value.code is ErrorCode.OPERATION_PENDING
    assert refused.value.holder == "a"
    assert refused.value.remaining_s == pytest.approx(9.0)
    engine.finish()
    engine.advance(0.1)
    assert engine.results["a"].outcome is Outcome.SUCCEEDED
    assert engine.flushes() == [1, 1]
    engine.flush("c")
    assert engine.results["c"].outcome is Outcome.SUCCEEDED


def test_a_pending_one_is_done_when_the_engine_becomes_idle(engine: Engine) -> None:
    engine.busy()
    engine.flush("a", 10.0)
    engine.advance(3.0)
    assert "a" not in engine.results
    engine.finish()
    engine.advance(0.05)
    assert engine.results["a"].outcome is Outcome.SUCCEEDED


def test_a_pending_one_expires_at_its_deadline_and_changes_nothing(engine: Engine) -> None:
    engine.busy()
    engine.flush("a", 3.0)
    engine.advance(3.1)
    result = engine.results["a"]
    assert result.outcome is Outcome.EXPIRED
    assert result.message.startswith("Timed out waiting for idle state.")
    assert "running=1" in result.message
    assert engine.flushes() == [0, 0]
    assert all(rank.machine.is_open for rank in engine.ranks)


def test_a_pending_one_survives_until_its_deadline(engine: Engine) -> None:
    engine.busy()
    engine.flush("a", 3.0)
    engine.advance(2.9)
    assert "a" not in engine.results


# ---- modes -------------------------------------------------------------------------------------


def test_a_busy_engine_refuses_if_idle_with_counts_and_changes_nothing(engine: Engine) -> None:
    engine.busy()
    engine.flush("a", mode=Mode.IF_IDLE)
    result = engine.results["a"]
    assert result.outcome is Outcome.FAILED
    assert "rank 0 running=1 chunked_prefill=0 waiting=0" in result.message
    assert engine.states("a") == ["failed", "not_started"]
    assert result.ranks[0].message.startswith("not idle: running=1 ")
    assert engine.flushes() == [0, 0]


def test_wait_serves_on_the_ranks_not_yet_parked(engine: Engine) -> None:
    engine.busy(0)
    engine.flush("a", 10.0)
    assert engine.ranks[0].machine.is_open
    assert not engine.ranks[1].machine.is_open


@pytest.mark.parametrize("mode", [Mode.DRAIN, Mode.RETRACT, Mode.ABORT])
def test_new_requests_are_held_until_the_end_whatever_it_is(engine: Engine, mode: Mode) -> None:
    engine.busy(max_new=50)
    engine.flush("a", 5.0, mode)
    if mode is Mode.DRAIN:
        assert engine.coordinator.is_holding
        engine.advance(5.1)
        assert engine.results["a"].outcome is Outcome.EXPIRED
    assert not engine.coordinator.is_holding
    assert all(rank.machine.is_open for rank in engine.ranks)


def test_drain_waits_for_running_requests_and_keeps_their_text(engine: Engine) -> None:
    engine.busy(max_new=40)
    engine.flush("a", 30.0, Mode.DRAIN)
    ask(engine.ranks[0].scheduler, "queued", [5, 6], 10)
    engine.finish()
    engine.advance(0.1)
    assert engine.results["a"].outcome is Outcome.SUCCEEDED
    engine.finish()
    assert engine.ranks[0].seen.tokens("busy") == solo([1, 2, 3], 40, "start")
    assert engine.ranks[0].seen.tokens("queued") == solo([5, 6], 10, "start")


def test_retract_flushes_almost_at_once_and_loses_nothing(engine: Engine) -> None:
    engine.busy(max_new=40)
    for _ in range(10):
        engine.ranks[0].scheduler.step(engine.now)
    engine.flush("a", 30.0, Mode.RETRACT)
    assert engine.results["a"].outcome is Outcome.SUCCEEDED
    assert engine.flushes() == [1, 1]
    engine.finish()
    assert engine.ranks[0].seen.tokens("busy") == solo([1, 2, 3], 40, "start")


def test_abort_ends_running_requests_and_keeps_waiting_ones(engine: Engine) -> None:
    scheduler = engine.ranks[0].scheduler
    scheduler._max_running = 1
    engine.busy(max_new=100)
    ask(scheduler, "queued", [5, 6], 10)
    engine.flush("a", 30.0, Mode.ABORT)
    assert engine.results["a"].outcome is Outcome.SUCCEEDED
    engine.finish()
    seen = engine.ranks[0].seen
    assert seen.finish("busy") == "abort"
    assert seen.tokens("queued") == solo([5, 6], 10, "start")


def test_drain_without_a_timeout_is_an_error(engine: Engine) -> None:
    with pytest.raises(ProtocolError) as refused:
        engine.flush("a", 0.0, Mode.DRAIN)
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize("timeout_s", [math.nan, math.inf, -math.inf, -1.0, 1e308])
def test_a_timeout_is_finite_and_bounded(engine: Engine, timeout_s: float) -> None:
    with pytest.raises(ProtocolError) as refused:
        engine.flush("a", timeout_s)
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT
    assert engine.journal.index.last_op == 0


def test_the_timeout_reaches_every_rank_as_it_was_asked(engine: Engine) -> None:  # F03
    engine.busy()
    engine.flush("a", 7.5)
    for rank in engine.ranks:
        prepares = [m for m in rank.heard if isinstance(m, Prepare)]
        assert [message.timeout_s for message in prepares] == [7.5]


# ---- idle --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place",
    [
        "chunked_prefill",
        "waiting",
        "grammar",
        "results",
        "l1_backup",
        "l2_load",
        "l3_prefetch",
        "l3_backup",
    ],
)
def test_each_place_alone_keeps_an_engine_busy_and_is_named(
    engine: Engine, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # F11
    from engine.protocol import Places

    scheduler = engine.ranks[1].scheduler
    monkeypatch.setattr(scheduler, "places", lambda: Places(**{place: 1}))
    engine.flush("a")
    assert engine.results["a"].outcome is Outcome.FAILED
    assert f"rank 1 {Places(**{place: 1})}" in engine.results["a"].message
    engine.flush("b", 5.0)
    assert "b" not in engine.results
    monkeypatch.undo()
    engine.now = engine.coordinator.now
    engine.coordinator.step(engine.now)


def test_idle_wins_at_the_deadline(engine: Engine) -> None:
    engine.busy()
    engine.flush("a", 3.0)
    engine.advance(2.95)
    scheduler = engine.ranks[0].scheduler
    while scheduler.has_work:
        scheduler.step(engine.now)
    scheduler.outputs.clear()
    engine.now += 0.4  # both have happened before anybody looks
    engine.settle()
    assert engine.results["a"].outcome is Outcome.SUCCEEDED


def test_every_rank_or_none(engine: Engine) -> None:
    """What a real server got wrong: 200 while one of two ranks was busy."""
    for busy in (0, 1):
        engine.busy(busy, rid=f"b{busy}")
        engine.flush(f"op{busy}")
        assert engine.results[f"op{busy}"].outcome is Outcome.FAILED
        assert engine.flushes() == [0, 0]
        engine.finish(busy)


# ---- changing a pending one ----------------------------------------------------------------------


def test_cancel_ends_it_and_serves_on(engine: Engine) -> None:
    engine.busy()
    engine.flush("a", 60.0, Mode.DRAIN)
    engine.operations.cancel("a")
    engine.advance(0.1)
    assert engine.results["a"].outcome is Outcome.CANCELLED
    assert not engine.coordinator.is_holding
    assert engine.flushes() == [0, 0]
    with pytest.raises(ProtocolError) as refused:
        engine.operations.cancel("a")
    assert refused.value.code is ErrorCode.NOT_CANCELLABLE


def test_extend_moves_the_deadline_and_the_leases(engine: Engine) -> None:
    engine.busy()
    engine.flush("a", 3.0)
    engine.advance(1.0)
    view = engine.operations.extend("a", 20.0)
    assert view.remaining_s == pytest.approx(22.0)
    engine.advance(15.0)
    assert "a" not in engine.results
    assert engine.ranks[1].machine.op is not None
    engine.finish()
    engine.advance(0.1)
    assert engine.results["a"].outcome is Outcome.SUCCEEDED


def test_shortening_below_now_expires_it(engine: Engine) -> None:
    engine.busy()
    engine.flush("a", 60.0)
    engine.operations.extend("a", -59.9)
    engine.advance(0.2)
    assert engine.results["a"].outcome is Outcome.EXPIRED


def test_force_goes_from_wait_to_drain_to_abort(engine: Engine) -> None:
    engine.busy(max_new=300)
    engine.flush("a", 60.0)
    assert engine.operations.force("a").mode is Mode.DRAIN
    engine.advance(0.1)
    assert engine.coordinator.is_holding
    engine.operations.force("a")
    engine.advance(0.2)
    assert engine.results["a"].outcome is Outcome.SUCCEEDED
    engine.finish()
    assert engine.ranks[0].seen.finish("busy") == "abort"


# ---- identity ------------------------------------------------------------------------------------


def test_a_repeated_id_gets_the_recorded_result_and_is_not_run_again(engine: Engine) -> None:
    first = engine.flush("a")
    again = engine.flush("a", 30.0)
    assert first.queue.get_nowait() == again.queue.get_nowait() == engine.results["a"]
    assert engine.flushes() == [1, 1]


def test_an_open_operation_can_be_followed_by_a_second_caller(engine: Engine) -> None:
    engine.busy()
    engine.flush("a", 10.0)
    second = engine.flush("a", 10.0)
    engine.finish()
    engine.advance(0.1)
    items = []
    while not second.queue.empty():
        items.append(second.queue.get_nowait())
    assert items[-1] == engine.results["a"]


def test_an_id_asked_about_before_it_came_never_runs(engine: Engine) -> None:
    assert engine.operations.query("late", seal=True)[0] is QueryStatus.NEVER
    with pytest.raises(ProtocolError) as refused:
        engine.flush("late")
    assert refused.value.code is ErrorCode.SEALED
    assert engine.operations.query("other", seal=False)[0] is QueryStatus.NEVER
    engine.flush("other")
    assert engine.results["other"].outcome is Outcome.SUCCEEDED


def test_a_command_past_its_moment_is_refused(engine: Engine) -> None:
    with pytest.raises(ProtocolError) as refused:
        engine.flush("a", 10.0, start_by=engine.now - 0.1)
    assert refused.value.code is ErrorCode.TOO_LATE
    engine.busy()
    engine.flush("b", 60.0, start_by=engine.now + 2.0)
    engine.advance(2.1)
    assert engine.results["b"].outcome is Outcome.EXPIRED


# ---- faults --------------------------------------------------------------------------------------


def test_a_rank_that_dies_while_waited_for_ends_it_with_nothing_changed(engine: Engine) -> None:
    engine.busy()
    engine.flush("a", 60.0)
    engine.ranks[1].alive = False
    engine.advance(0.1)
    assert engine.results["a"].outcome is Outcome.FAILED
    assert engine.states("a")[1] == "unreachable"
    assert engine.ranks[0].machine.is_open
    with pytest.raises(ProtocolError) as refused:
        engine.flush("b")
    assert refused.value.code is ErrorCode.RANK_NOT_READY
    engine.finish()
    engine.restart_rank(1)
    engine.advance(1.5)
    engine.flush("c")
    assert engine.results["c"].outcome is Outcome.SUCCEEDED


def test_a_rank_silent_after_the_decision_is_killed_and_named(engine: Engine) -> None:
    commit = engine.ranks[1].machine.handle

    def deaf_to_commit(message: object, now: float) -> None:
        if type(message).__name__ != "Commit":
            commit(message, now)  # type: ignore[arg-type]

    engine.ranks[1].machine.handle = deaf_to_commit  # type: ignore[method-assign]
    engine.flush("a", 10.0)
    assert engine.operations.pending() is not None
    with pytest.raises(ProtocolError) as refused:
        engine.operations.cancel("a")
    assert refused.value.code is ErrorCode.NOT_CANCELLABLE
    engine.advance(engine.times.budget_s + 1.0)
    assert engine.killed == [1]
    assert engine.results["a"].outcome is Outcome.PARTIAL
    assert engine.states("a") == ["succeeded", "unreachable"]


@pytest.mark.parametrize("dp_size", [1, 2, 4])
def test_for_every_subset_of_ranks_that_fail_to_commit_the_word_is_right(
    dp_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.scheduler.participant import CommitFailedError

    subsets = itertools.chain.from_iterable(
        itertools.combinations(range(dp_size), size) for size in range(dp_size + 1)
    )
    for failing in subsets:
        engine = Engine(dp_size=dp_size)
        for number in failing:
            host = engine.ranks[number].machine._host

            def fail(operation: object, new: object) -> None:
                raise CommitFailedError("the pool is stuck")

            monkeypatch.setattr(host, "commit", fail)
        engine.flush("a", 5.0)
        result = engine.results["a"]
        expected = (
            Outcome.SUCCEEDED
            if not failing
            else Outcome.FAILED
            if len(failing) == dp_size
            else Outcome.PARTIAL
        )
        assert result.outcome is expected, failing
        states = ["failed" if n in failing else "succeeded" for n in range(dp_size)]
        assert engine.states("a") == states
        assert engine.flushes() == [int(n not in failing) for n in range(dp_size)]
        assert all(rank.machine.is_open for rank in engine.ranks)  # an unflushed rank serves on


def test_a_journal_that_cannot_be_written_refuses_and_nothing_happens(engine: Engine) -> None:
    from engine.frontend.journal_records import JournalFullError

    engine.journal.error = JournalFullError(errno.ENOSPC, "journal: No space left on device")
    with pytest.raises(ProtocolError) as refused:
        engine.flush("a")
    assert refused.value.code is ErrorCode.JOURNAL_UNAVAILABLE
    assert engine.flushes() == [0, 0]
    engine.journal.error = None
    engine.flush("b")
    assert engine.results["b"].outcome is Outcome.SUCCEEDED


def test_a_decision_that_cannot_be_written_ends_all_old(engine: Engine) -> None:
    from engine.frontend.journal_records import Decided, JournalFullError, Record

    append = engine.journal.append

    def refuse_decided(record: Record) -> None:
        if isinstance(record, Decided):
            raise JournalFullError(errno.EIO, "journal: Input/output error")
        append(record)

    engine.journal.append = refuse_decided  # type: ignore[method-assign]
    engine.flush("a", 5.0)
    assert engine.results["a"].outcome is Outcome.FAILED
    assert engine.flushes() == [0, 0]


def test_progress_tells_each_change_and_then_the_result(engine: Engine) -> None:
    engine.busy()
    follower = engine.flush("a", 10.0)
    assert engine.operations.tell_progress(engine.now) is not None
    assert engine.operations.tell_progress(engine.now) is None
    engine.operations.extend("a", 5.0)
    engine.advance(0.3)
    assert engine.operations.tell_progress(engine.now) is not None
    engine.finish()
    engine.advance(0.1)
    items = []
    while not follower.queue.empty():
        items.append(follower.queue.get_nowait())
    assert items[-1] == engine.results["a"]
    assert len(items) >= 3


def test_a_disk_that_fails_before_the_decision_keeps_no_request_waiting(engine: Engine) -> None:
    from engine.frontend.journal_records import JournalFullError

    engine.busy()
    engine.flush("a", 5, Mode.DRAIN)
    engine.settle()
    assert engine.coordinator.is_holding
    engine.journal.error = JournalFullError(5, "Input/output error")
    engine.finish()
    engine.advance(1)
    assert "a" not in engine.results  # its end is not on disk
    assert engine.coordinator.disk_fault
    assert not engine.coordinator.is_holding
    assert all(rank.machine.is_open for rank in engine.ranks)
    engine.journal.error = None
    engine.advance(0.2)
    assert engine.results["a"].outcome is Outcome.FAILED
    assert not engine.coordinator.disk_fault
    engine.flush("b")
    engine.settle()
    assert engine.results["b"].outcome is Outcome.SUCCEEDED

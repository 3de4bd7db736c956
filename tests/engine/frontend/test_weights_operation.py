"""A weight update over the real coordinator and the real rank machines: every rank or none, never a
wrong word, whichever ranks fail in whichever phase."""

from __future__ import annotations

import itertools

import pytest

from engine.ipc.messages import RankPhase
from engine.protocol import (
    ContinueGeneration,
    ErrorCode,
    FlushCache,
    MemoryTag,
    Mode,
    OperationKind,
    Outcome,
    PauseGeneration,
    PauseMode,
    ProtocolError,
    RankState,
    ReleaseMemory,
    Repair,
    ResumeMemory,
    UpdateWeightsFromDisk,
    UpdateWeightVersion,
)
from tests.engine.frontend.engine_in_memory import Engine
from tests.engine.scheduler.helpers import ask
from tests.fakes.runner import solo

OLD, NEW = "start", "sum-of-/models/new"
SIZES = [1, 2, 4]


def subsets(size: int) -> list[tuple[int, ...]]:
    """Every set of ranks, the empty one and all of them among them."""
    ranks = range(size)
    return [s for count in range(size + 1) for s in itertools.combinations(ranks, count)]


def cases() -> list[tuple[int, tuple[int, ...]]]:
    return [(size, failing) for size in SIZES for failing in subsets(size)]


def served(engine: Engine) -> list[str]:
    """The checksum that each rank computes with."""
    return [rank.runner.weights.checksum for rank in engine.ranks]


def desired(engine: Engine) -> str:
    return engine.journal.index.desired.weights.checksum


def is_right(engine: Engine, rank: int) -> bool:
    """A new request is answered by the weights that this rank is said to serve."""
    scheduler = engine.ranks[rank].scheduler
    ask(scheduler, f"probe-{rank}-{engine.now}", [7, 8, 9], 6)
    engine.finish(rank)
    tokens = engine.ranks[rank].seen.tokens(f"probe-{rank}-{engine.now}")
    return tokens == solo([7, 8, 9], 6, engine.ranks[rank].runner.weights.checksum)


@pytest.mark.parametrize(("size", "failing"), cases())
def test_whoever_refuses_to_prepare_nothing_changes(size: int, failing: tuple[int, ...]) -> None:
    engine = Engine(dp_size=size)
    for rank in failing:
        engine.ranks[rank].weights.stage_error = "tensor x: missing from the checkpoint"
    result = engine.update("op")
    assert result is not None
    if not failing:
        assert result.outcome is Outcome.SUCCEEDED
        assert served(engine) == [NEW] * size and desired(engine) == NEW
        assert result.weights is not None and result.weights.checksum == NEW
        assert result.weights_before is not None and result.weights_before.checksum == OLD
        return
    assert result.outcome is Outcome.FAILED
    assert served(engine) == [OLD] * size and desired(engine) == OLD
    named = {rank.dp_rank for rank in result.ranks if "tensor x" in rank.message}
    assert named and named <= set(failing)
    assert "tensor x: missing" in result.message
    assert all(is_right(engine, rank) for rank in range(size))


@pytest.mark.parametrize(("size", "failing"), cases())
def test_whoever_fails_to_commit_is_named_and_the_others_go_back(
    size: int, failing: tuple[int, ...]
) -> None:
    engine = Engine(dp_size=size)
    for rank in failing:
        engine.ranks[rank].weights.commit_error = "scripted"
    result = engine.update("op")
    assert result is not None
    if not failing:
        assert result.outcome is Outcome.SUCCEEDED
        return
    assert result.outcome is Outcome.FAILED
    assert served(engine) == [OLD] * size and desired(engine) == OLD
    for rank in result.ranks:
        expected = RankState.FAILED if rank.dp_rank in failing else RankState.COMPENSATED
        assert rank.state is expected, result
    assert all(is_right(engine, rank) for rank in range(size))
    assert engine.update("again") is not None  # nothing is in the way of the next one
    for rank in failing:
        engine.ranks[rank].weights.commit_error = ""
    again = engine.update("third")
    assert again is not None and again.outcome is Outcome.SUCCEEDED


def undo_cases() -> list[tuple[int, tuple[int, ...]]]:
    """One rank fails to commit, so that the others are told to go back."""
    return [(size, failing) for size, failing in cases() if size > 1 and 0 not in failing]


@pytest.mark.parametrize(("size", "failing"), undo_cases())
def test_whoever_cannot_go_back_is_fenced_and_repaired(size: int, failing: tuple[int, ...]) -> None:
    engine = Engine(dp_size=size)
    engine.ranks[0].weights.commit_error = "scripted"
    for rank in failing:
        engine.ranks[rank].weights.undo_error = "no way back"
    result = engine.update("op")
    assert result is not None
    if not failing:
        assert result.outcome is Outcome.FAILED and served(engine) == [OLD] * size
        return
    assert result.outcome is Outcome.PARTIAL
    assert served(engine) == [NEW if rank in failing else OLD for rank in range(size)]
    for rank in result.ranks:
        if rank.dp_rank in failing:
            assert rank.state is RankState.FAILED and "new state" in rank.message
        elif rank.dp_rank == 0:
            assert (rank.state, rank.message) == (RankState.FAILED, "scripted")
        else:
            assert rank.state is RankState.COMPENSATED
    assert desired(engine) == OLD
    for rank in failing:  # no traffic reaches them, and nothing but a repair is taken
        assert engine.ranks[rank].machine.view().phase is RankPhase.FENCED
        assert not engine.table.is_routable(rank)
    with pytest.raises(ProtocolError) as refused:
        engine.update("refused")
    assert refused.value.code is ErrorCode.RANK_NOT_READY and "fenced" in refused.value.message
    engine.submit("repair", Repair())
    engine.advance(1.0)
    assert engine.results["repair"].outcome is Outcome.SUCCEEDED
    assert served(engine) == [OLD] * size
    assert all(is_right(engine, rank) for rank in range(size))
    engine.ranks[0].weights.commit_error = ""
    for rank in failing:
        engine.ranks[rank].weights.undo_error = ""
    final = engine.update("final")
    assert final is not None and final.outcome is Outcome.SUCCEEDED


def test_a_repair_that_cannot_load_says_why_and_can_be_asked_again() -> None:
    engine = Engine(dp_size=2)
    engine.ranks[0].weights.commit_error = "scripted"
    engine.ranks[1].weights.undo_error = "no way back"
    engine.update("op")
    engine.ranks[1].weights.converge_error = "the folder is gone"
    engine.submit("repair", Repair())
    engine.advance(1.0)
    result = engine.results["repair"]
    assert result.outcome is Outcome.PARTIAL
    assert [rank.state for rank in result.ranks] == [RankState.SUCCEEDED, RankState.FAILED]
    assert "the folder is gone" in result.ranks[1].message
    assert engine.ranks[1].machine.view().note == "the folder is gone"
    assert not engine.table.is_routable(1) and engine.table.is_routable(0)
    engine.ranks[1].weights.converge_error = ""
    engine.submit("repair-2", Repair())
    engine.advance(1.0)
    assert engine.results["repair-2"].outcome is Outcome.SUCCEEDED
    assert served(engine) == [OLD, OLD]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_that_dies_after_the_decision_is_named_and_converges(size: int, rank: int) -> None:
    engine = Engine(dp_size=size)
    dying = engine.ranks[rank]
    commit = dying.weights.commit

    def die(weights: object) -> None:
        dying.alive = False
        raise SystemExit

    dying.weights.commit = die  # type: ignore[method-assign,assignment]
    with pytest.raises(SystemExit):
        engine.update("op")
    dying.weights.commit = commit  # type: ignore[method-assign]
    engine._settling = False
    engine.advance(1.5)
    result = engine.results["op"]
    assert result.outcome is Outcome.PARTIAL
    assert result.ranks[rank].state is RankState.UNREACHABLE
    assert desired(engine) == NEW
    engine.restart_rank(rank)
    engine.advance(2.0)
    assert engine.table.is_proven(rank) and served(engine) == [NEW] * size
    assert is_right(engine, rank)


def test_a_rank_that_dies_while_it_stages_leaves_all_old() -> None:
    engine = Engine(dp_size=2)
    for rank in engine.ranks:
        rank.weights.is_slow = True
    engine.update("op")
    engine.advance(0.5)
    assert engine.operations.pending() is not None
    engine.ranks[1].alive = False
    engine.advance(0.5)
    assert engine.results["op"].outcome is Outcome.FAILED
    assert served(engine)[0] == OLD and desired(engine) == OLD
    engine.restart_rank(1)
    engine.advance(2.0)
    assert engine.table.is_proven(1)


def test_ranks_that_hold_other_weights_than_each_other_take_none() -> None:
    """W17: the comparison is proven able to fail."""
    engine = Engine(dp_size=2)
    engine.ranks[1].weights.checksum = "flipped"
    result = engine.update("op")
    assert result is not None and result.outcome is Outcome.FAILED
    assert "do not hold the same weights" in result.message
    assert "rank 0 sum-of" in result.message and "rank 1 flipped" in result.message
    assert served(engine) == [OLD, OLD]


def test_the_flush_that_fails_after_the_swap_puts_the_old_weights_back() -> None:
    """W11: the answer separates the two, and nothing is left half done."""
    engine = Engine(dp_size=2)

    def broken(*, empty_cache: bool) -> int:
        raise RuntimeError("the device said no")

    engine.ranks[1].scheduler.flush = broken  # type: ignore[method-assign,assignment]
    result = engine.update("op")
    assert result is not None and result.outcome is Outcome.FAILED
    assert "the weights were loaded, but the flush failed" in result.ranks[1].message
    assert served(engine) == [OLD, OLD]
    assert is_right(engine, 0) and is_right(engine, 1)


@pytest.mark.parametrize("flush_cache", [True, False])
def test_kv_of_old_weights_is_never_read_by_new_ones(flush_cache: bool) -> None:
    """W01, W09: FakeRunner asserts that a page was written by the weights that read it."""
    engine = Engine(dp_size=2)
    prompt = list(range(40))
    ask(engine.ranks[0].scheduler, "a", prompt, 4)
    engine.finish(0)
    engine.update("op", flush_cache=flush_cache)
    ask(engine.ranks[0].scheduler, "b", prompt, 4)
    engine.finish(0)
    seen = engine.ranks[0].seen
    assert seen.items["b"][-1].cached_tokens == 0
    assert seen.tokens("b") == solo(prompt, 4, NEW) != seen.tokens("a")
    engine.update("back", "/models/other", flush_cache=False)
    engine.update("again", "/models/new", flush_cache=False)
    ask(engine.ranks[0].scheduler, "c", prompt, 4)
    engine.finish(0)
    assert seen.items["c"][-1].cached_tokens > 0  # the same weights: their KV is right again
    assert seen.tokens("c") == seen.tokens("b")


def test_retract_loses_no_token_and_says_which_weights_made_which() -> None:
    engine = Engine(dp_size=2)
    scheduler, seen = engine.ranks[0].scheduler, engine.ranks[0].seen
    for number in range(8):
        ask(scheduler, f"r{number}", [number, 1, 2], 30)
    for _ in range(12):
        scheduler.step(engine.now)
        seen.take(scheduler)
    before = {rid: seen.tokens(rid) for rid in seen.items}
    assert len(before) == 8
    result = engine.update("op")
    assert result is not None and result.outcome is Outcome.SUCCEEDED
    assert result.interrupted == 8 and result.ranks[0].interrupted == 8
    engine.finish(0)
    for number in range(8):
        tokens = seen.tokens(f"r{number}")
        first = before[f"r{number}"]
        assert len(tokens) == 30 and tokens[: len(first)] == first
        history = [number, 1, 2, *first]
        assert tokens[len(first) :] == solo(history, 30 - len(first), NEW)
        versions = [item.weight_version for item in seen.items[f"r{number}"] if item.token_ids]
        assert versions == sorted(versions, key=lambda v: v != "default")
        assert set(versions) == {"default", NEW[:12]}
    assert scheduler.kv.usage().used_pages == 0


def test_an_update_that_may_not_wait_is_refused_while_busy_and_changes_nothing() -> None:
    """W08 a."""
    engine = Engine(dp_size=2)
    engine.busy(0)
    result = engine.update("op", mode=Mode.WAIT)
    assert result is not None and result.outcome is Outcome.FAILED
    assert result.message.startswith("not idle: rank 0 running=1 ")
    assert served(engine) == [OLD, OLD]
    assert engine.ranks[0].weights.num_staged == 0  # it is known at once
    engine.finish(0)
    assert engine.ranks[0].seen.tokens("busy") == solo([1, 2, 3], 300, OLD)


def test_abort_ends_what_runs_and_counts_it() -> None:
    """W08 b."""
    engine = Engine(dp_size=2)
    engine.busy(0)
    result = engine.update("op", mode=Mode.ABORT)
    assert result is not None and result.outcome is Outcome.SUCCEEDED and result.interrupted == 1
    engine.finish(0)
    finish = engine.ranks[0].seen.items["busy"][-1].finish
    assert finish is not None and finish.type == "abort"


def test_the_deadline_counts_from_the_end_of_staging() -> None:
    engine = Engine(dp_size=2)
    engine.busy(1)
    for rank in engine.ranks:
        rank.weights.is_slow = True
    engine.update("op", mode=Mode.WAIT, timeout_s=2.0)
    engine.advance(8.0)
    assert engine.operations.pending() is not None and not engine.results
    for rank in engine.ranks:
        rank.weights.finish()
    engine.advance(1.5)
    assert engine.operations.pending() is not None
    engine.advance(1.0)
    assert engine.results["op"].outcome is Outcome.EXPIRED
    assert served(engine) == [OLD, OLD]


def test_the_pause_is_told_also_where_every_rank_was_idle_at_once() -> None:
    engine = Engine(dp_size=2)
    result = engine.update("op", mode=Mode.WAIT)
    assert result is not None and result.outcome is Outcome.SUCCEEDED
    assert result.pause_s is not None and result.staged_s is not None


def test_a_cancel_while_staging_leaves_all_old_and_nothing_staged() -> None:
    engine = Engine(dp_size=2)
    for rank in engine.ranks:
        rank.weights.is_slow = True
    engine.update("op")
    engine.operations.cancel("op")
    engine.advance(0.5)
    assert engine.results["op"].outcome is Outcome.CANCELLED
    assert [rank.weights.staged for rank in engine.ranks] == [None, None]
    assert served(engine) == [OLD, OLD]


def test_the_old_copy_goes_when_the_end_is_recorded() -> None:
    engine = Engine(dp_size=2)
    engine.update("op")
    engine.advance(0.5)
    assert [rank.weights.kept for rank in engine.ranks] == [None, None]


# ---- pause, version, memory ------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(PauseMode))
def test_a_pause_stops_every_rank_at_once_and_again(mode: PauseMode) -> None:
    """P01, F05: acknowledged after its effect, with counts; repeats change nothing."""
    engine = Engine(dp_size=2)
    engine.busy(0)
    scheduler = engine.ranks[0].scheduler
    for repeat in range(2):
        engine.submit(f"pause-{repeat}", PauseGeneration(pause_mode=mode))
        engine.settle()
        assert engine.results[f"pause-{repeat}"].outcome is Outcome.SUCCEEDED
    steps = engine.ranks[0].runner.steps
    assert not scheduler.has_work and not engine.ranks[0].machine.is_open
    scheduler.step(engine.now)
    assert engine.ranks[0].runner.steps == steps
    interrupted = engine.results["pause-0"].interrupted
    assert interrupted == (0 if mode is PauseMode.IN_PLACE else 1)
    assert engine.journal.index.desired.paused is mode
    if mode is not PauseMode.ABORT:
        assert scheduler.places().running == (1 if mode is PauseMode.IN_PLACE else 0)
    for repeat in range(2):
        engine.submit(f"continue-{repeat}", ContinueGeneration())
        engine.settle()
        assert engine.results[f"continue-{repeat}"].outcome is Outcome.SUCCEEDED
    engine.finish(0)
    seen = engine.ranks[0].seen
    if mode is PauseMode.ABORT:
        assert seen.items["busy"][-1].finish.type == "abort"  # type: ignore[union-attr]
    else:
        assert seen.tokens("busy") == solo([1, 2, 3], 300, OLD)


def test_a_paused_engine_is_flushed_though_requests_wait() -> None:
    """F05: the exemption is for the waiting queue, and only while paused."""
    engine = Engine(dp_size=2)
    scheduler = engine.ranks[0].scheduler
    for number in range(64):
        ask(scheduler, f"r{number}", [number % 7, 3, number], 6)
    scheduler.step(engine.now)
    control = engine.flush("control")
    engine.settle()
    assert engine.results["control"].outcome is Outcome.FAILED and control is not None
    engine.submit("pause", PauseGeneration(pause_mode=PauseMode.RETRACT))
    engine.settle()
    for timeout_s in (0.0, 5.0):
        engine.flush(f"flush-{timeout_s}", timeout_s)
        engine.settle()
        assert engine.results[f"flush-{timeout_s}"].outcome is Outcome.SUCCEEDED
    usage = scheduler.kv.usage()
    assert usage.used_pages == 0 and usage.free_pages == usage.total_pages
    engine.submit("continue", ContinueGeneration())
    engine.settle()
    engine.finish(0)
    for number in range(64):
        tokens = engine.ranks[0].seen.tokens(f"r{number}")
        assert tokens == solo([number % 7, 3, number], 6, OLD)


def test_a_wedged_request_is_reaped_without_a_forward_pass() -> None:
    """F07: paused in place, nothing steps; the abort ends it and the flush succeeds."""
    engine = Engine(dp_size=2)
    engine.busy(0)
    engine.submit("pause", PauseGeneration(pause_mode=PauseMode.IN_PLACE))
    engine.settle()
    engine.flush("stuck", 5.0)
    engine.advance(5.2)
    stuck = engine.results["stuck"]
    assert stuck.outcome is Outcome.EXPIRED and "running=1" in stuck.message
    steps = engine.ranks[0].runner.steps
    assert engine.ranks[0].scheduler.abort("busy")
    engine.flush("freed", 5.0)
    engine.advance(0.2)
    assert engine.results["freed"].outcome is Outcome.SUCCEEDED
    assert engine.ranks[0].runner.steps == steps
    assert engine.ranks[0].scheduler.kv.usage().used_pages == 0


def test_a_new_version_touches_no_request() -> None:
    engine = Engine(dp_size=2)
    engine.busy(0)
    engine.submit("name", UpdateWeightVersion(new_version="step-7"))
    engine.settle()
    assert engine.results["name"].outcome is Outcome.SUCCEEDED
    assert engine.ranks[0].scheduler.places().running == 1
    assert engine.journal.index.desired.weights.version == "step-7"
    assert desired(engine) == OLD
    engine.finish(0)
    assert engine.ranks[0].seen.tokens("busy") == solo([1, 2, 3], 300, OLD)
    assert engine.ranks[0].seen.items["busy"][-1].weight_version == "step-7"


def test_weights_that_come_back_empty_serve_nothing_until_others_are_loaded() -> None:
    engine = Engine(dp_size=2)
    engine.submit("release", ReleaseMemory())
    engine.settle()
    assert engine.results["release"].outcome is Outcome.SUCCEEDED
    assert not engine.ranks[0].runner.has_kv
    assert engine.update("too-early").outcome is Outcome.FAILED  # type: ignore[union-attr]
    for op_id, tags, word in (
        ("twice", (MemoryTag.WEIGHTS,), "already released"),
        ("all-again", (MemoryTag.KV_CACHE, MemoryTag.WEIGHTS), "already released"),
    ):
        engine.submit(op_id, ReleaseMemory(tags=tags))
        engine.settle()
        assert engine.results[op_id].outcome is Outcome.FAILED
        assert word in engine.results[op_id].message
    engine.submit("resume", ResumeMemory())
    engine.settle()
    assert engine.results["resume"].outcome is Outcome.SUCCEEDED
    assert engine.journal.index.desired.needs_weights
    assert not any(rank.machine.is_open for rank in engine.ranks)
    engine.submit("resume-2", ResumeMemory())
    engine.settle()
    assert "not currently released" in engine.results["resume-2"].message
    result = engine.update("load")
    assert result is not None and result.outcome is Outcome.SUCCEEDED
    assert all(is_right(engine, rank) for rank in range(2))


def test_one_exclusive_operation_at_a_time() -> None:
    engine = Engine(dp_size=2)
    engine.busy(0)
    engine.update("first", mode=Mode.WAIT, timeout_s=20.0)
    for operation in (
        UpdateWeightsFromDisk(model_path="/models/other"),
        FlushCache(),
        PauseGeneration(),
        Repair(),
    ):
        with pytest.raises(ProtocolError) as refused:
            engine.submit(f"second-{operation.kind}", operation)
        assert refused.value.code is ErrorCode.OPERATION_PENDING
        assert refused.value.holder == "first" and refused.value.remaining_s is not None
    assert engine.operations.pending() is not None
    assert engine.operations.pending().kind is OperationKind.UPDATE_WEIGHTS_FROM_DISK  # type: ignore[union-attr]


def test_a_restarted_rank_takes_what_every_other_serves() -> None:
    engine = Engine(dp_size=2)
    engine.update("op")
    engine.submit("pause", PauseGeneration(pause_mode=PauseMode.RETRACT))
    engine.settle()
    engine.ranks[1].alive = False
    engine.advance(0.5)
    engine.restart_rank(1)
    engine.advance(2.0)
    assert served(engine) == [NEW, NEW] and engine.table.is_proven(1)
    assert engine.ranks[1].machine.is_stopped  # as paused as the others

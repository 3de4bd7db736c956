"""Attach, detach, switch and clear over the real coordinator and the real rank machines: every rank
or none, never a wrong word, whichever ranks fail in whichever phase."""

from __future__ import annotations

import itertools

import pytest

from engine.cache.storage.base import StorageError
from engine.protocol import (
    AttachStorage,
    CachePolicies,
    ClearStorage,
    DetachStorage,
    ErrorCode,
    Mode,
    Outcome,
    PrefetchPolicy,
    ProtocolError,
    RankState,
    SetCachePolicies,
    StorageBackend,
    WritePolicy,
)
from tests.engine.frontend.engine_in_memory import Engine
from tests.fakes.storage import Script

SIZES = [1, 2, 3, 4]
ONE, TWO = "1" * 16, "2" * 16


def cases() -> list[tuple[int, tuple[int, ...]]]:
    return [
        (size, failing)
        for size in SIZES
        for count in range(1, size + 1)
        for failing in itertools.combinations(range(size), count)
    ]


def attach(config_id: str = ONE, **more: object) -> AttachStorage:
    return AttachStorage(backend=StorageBackend.FILE, config_id=config_id, **more)  # type: ignore[arg-type]


def attached(engine: Engine) -> list[str]:
    """The settings that each rank uses, "" for none."""
    views = [rank.storage.keeper.view for rank in engine.ranks if rank.storage]
    return [view.config_id if view else "" for view in views]


def num_open(engine: Engine) -> list[int]:
    return [rank.storage.num_open for rank in engine.ranks if rank.storage]


def do(engine: Engine, operation: object, **more: object) -> Outcome:
    op_id = f"op-{len(engine.results)}"
    engine.submit(op_id, operation, **more)  # type: ignore[arg-type]
    engine.advance(12)
    return engine.results[op_id].outcome


def last(engine: Engine) -> list[tuple[str, str]]:
    result = list(engine.results.values())[-1]
    return [(rank.state.value, rank.message) for rank in result.ranks]


@pytest.mark.parametrize(("size", "failing"), cases())
@pytest.mark.parametrize("before", ["", ONE])
def test_ranks_that_cannot_open_leave_all_as_they_were(
    size: int, failing: tuple[int, ...], before: str
) -> None:
    engine = Engine(dp_size=size, host_pages=64)
    if before:
        assert do(engine, attach(ONE)) is Outcome.SUCCEEDED
    for rank in failing:
        storage = engine.ranks[rank].storage
        assert storage is not None
        storage.scripts = [Script(open_error=StorageError(f"no store for rank {rank}"))]
    assert do(engine, attach(TWO, replace=True)) is Outcome.FAILED
    assert attached(engine) == [before] * size
    assert num_open(engine) == [int(bool(before))] * size
    told = last(engine)
    for rank in range(size):
        if rank in failing:
            assert told[rank] == (RankState.FAILED.value, f"no store for rank {rank}")
        else:
            assert told[rank][0] == RankState.NOT_STARTED.value
    assert all(engine.table.is_proven(rank) for rank in range(size))
    assert do(engine, attach(TWO, replace=True)) is Outcome.SUCCEEDED
    assert attached(engine) == [TWO] * size and num_open(engine) == [1] * size


@pytest.mark.parametrize(("size", "failing"), cases())
def test_ranks_that_fail_to_commit_are_taken_back_by_the_others(
    size: int, failing: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(dp_size=size, host_pages=64)
    assert do(engine, attach(ONE)) is Outcome.SUCCEEDED
    for rank in failing:
        storage = engine.ranks[rank].storage
        assert storage is not None

        def gone(view: object) -> None:
            raise StorageError("gone at the last moment")

        monkeypatch.setattr(storage.keeper, "commit", gone)
    assert do(engine, attach(TWO, replace=True)) is Outcome.FAILED
    assert attached(engine) == [ONE] * size and num_open(engine) == [1] * size
    for rank, (state, _) in enumerate(last(engine)):
        expected = RankState.FAILED if rank in failing else RankState.COMPENSATED
        assert state == expected.value
    for rank in engine.ranks:  # what was taken back is used again, and not just shown
        assert rank.storage is not None and rank.storage.tiers.attached is not None
        worker = rank.storage.tiers.attached.worker
        assert worker is not None and worker.takes


def test_a_detach_is_idempotent_and_policies_outlive_it() -> None:
    engine = Engine(host_pages=64)
    policies = {
        "write_policy": WritePolicy.WRITE_BACK,
        "prefetch_policy": PrefetchPolicy.BEST_EFFORT,
    }
    assert do(engine, attach(ONE, **policies)) is Outcome.SUCCEEDED
    for _ in range(2):
        assert do(engine, DetachStorage()) is Outcome.SUCCEEDED
        assert attached(engine) == ["", ""] and num_open(engine) == [0, 0]
        assert engine.journal.index.desired.policies == CachePolicies(**policies)
    for rank in engine.ranks:
        assert rank.storage is not None
        assert rank.storage.tiers.host.write_policy is WritePolicy.WRITE_BACK


def test_the_same_settings_again_change_policies_only() -> None:
    engine = Engine(host_pages=64)
    do(engine, attach(ONE))
    opened = [rank.storage.made for rank in engine.ranks if rank.storage]
    again = attach(ONE, write_policy=WritePolicy.WRITE_THROUGH_SELECTIVE)
    assert do(engine, again) is Outcome.SUCCEEDED
    assert [len(made) for made in opened] == [1, 1]
    assert engine.journal.index.desired.policies.write_policy is again.write_policy
    assert do(engine, SetCachePolicies(write_policy=WritePolicy.WRITE_BACK)) is Outcome.SUCCEEDED
    assert engine.journal.index.desired.policies.write_policy is WritePolicy.WRITE_BACK


def test_other_settings_need_a_replace() -> None:
    engine = Engine(host_pages=64)
    do(engine, attach(ONE))
    for other in (attach(TWO), AttachStorage(backend=StorageBackend.NIXL, config_id=TWO)):
        with pytest.raises(ProtocolError) as refused:
            engine.submit("other", other)
        assert refused.value.code is ErrorCode.INVALID_ARGUMENT
        assert "Detach first" in refused.value.message
    assert attached(engine) == [ONE, ONE]


def test_a_busy_engine_refuses_before_it_opens_anything() -> None:
    engine = Engine(host_pages=64)
    engine.busy(1)
    assert do(engine, attach(ONE)) is Outcome.FAILED
    assert num_open(engine) == [0, 0]
    assert all(not rank.storage.made for rank in engine.ranks[1:] if rank.storage)
    engine.finish(1)
    assert do(engine, attach(ONE), mode=Mode.WAIT, timeout_s=5.0) is Outcome.SUCCEEDED


def test_a_forced_detach_goes_beside_running_requests() -> None:
    engine = Engine(host_pages=64)
    do(engine, attach(ONE))
    engine.busy(0)
    assert do(engine, DetachStorage()) is Outcome.FAILED
    assert do(engine, DetachStorage(force=True)) is Outcome.SUCCEEDED
    assert attached(engine) == ["", ""] and num_open(engine) == [0, 0]
    assert engine.ranks[0].scheduler.running


@pytest.mark.parametrize("failing", [(0,), (1,), (0, 1)])
def test_a_clear_that_fails_on_some_ranks_names_them(failing: tuple[int, ...]) -> None:
    engine = Engine(host_pages=64)
    with pytest.raises(ProtocolError) as refused:
        engine.submit("early", ClearStorage())
    assert "no storage backend is attached" in refused.value.message
    for rank in failing:
        storage = engine.ranks[rank].storage
        assert storage is not None
        storage.scripts = [Script(clear_error=StorageError("3 of 5 are left"))]
    do(engine, attach(ONE))
    outcome = do(engine, ClearStorage())
    assert outcome is (Outcome.FAILED if len(failing) == 2 else Outcome.PARTIAL)
    for rank, (state, message) in enumerate(last(engine)):
        if rank in failing:
            assert state == RankState.FAILED.value and "3 of 5 are left" in message
        else:
            assert state == RankState.SUCCEEDED.value


def test_a_rank_that_starts_again_attaches_or_serves_without_and_tries_on() -> None:
    engine = Engine(host_pages=64)
    do(engine, attach(ONE))
    engine.restart_rank(1)
    storage = engine.ranks[1].storage
    assert storage is not None
    storage.scripts = [Script(open_error=OSError("not yet"))]
    engine.advance(2)
    assert engine.table.is_proven(1) and attached(engine) == [ONE, ONE]
    report = storage.keeper.report()
    assert report is not None and not report.is_open and "OSError" in report.last_error
    storage.keeper._clock = lambda: 10**9
    storage.keeper.tick()
    report = storage.keeper.report()
    assert report is not None and report.is_open and num_open(engine) == [1, 1]


def test_an_attach_of_the_same_again_opens_it_where_a_rank_lacks_it() -> None:
    """It says that the backend is attached; so it must be, or why not."""
    engine = Engine(host_pages=64)
    do(engine, attach(ONE))
    engine.restart_rank(1)
    storage = engine.ranks[1].storage
    assert storage is not None
    storage.scripts = [Script(open_error=OSError("not yet")), Script(open_error=OSError("no"))]
    engine.advance(2)
    assert storage.keeper.is_missing
    policies = engine.journal.index.desired.policies
    again = attach(ONE, write_policy=WritePolicy.WRITE_BACK)
    assert do(engine, again) is Outcome.FAILED
    assert "could not be opened" in last(engine)[1][1] and storage.keeper.is_missing
    assert engine.journal.index.desired.policies == policies
    assert do(engine, again) is Outcome.SUCCEEDED
    assert not storage.keeper.is_missing and num_open(engine) == [1, 1]
    assert attached(engine) == [ONE, ONE] and len(engine.ranks[0].storage.made) == 1  # type: ignore[union-attr]
    assert engine.journal.index.desired.policies.write_policy is WritePolicy.WRITE_BACK

"""Short histories, written by hand, for guards that random seeds exercise too rarely."""

from __future__ import annotations

from engine.frontend.operation_state import Current, SendTo
from engine.ipc.messages import (
    Commit,
    Converge,
    Park,
    Prepare,
    Release,
    Said,
    Word,
)
from engine.protocol import FlushCache, Mode
from tests.engine.simulation.world import TIMES, Front, Guards, SimRank, World, state

OLD = state("first")
NEW = state("new")


def _rank(guards: Guards) -> tuple[World, SimRank]:
    """One rank that has converged, in a world where nothing is random."""
    world = World(0, 1, guards)
    world.chaos = False
    world.commit_time = lambda: 0.0  # type: ignore[method-assign]
    world.on_effect = lambda rank, op, what: None  # type: ignore[method-assign]
    world.rng.random = lambda: 1.0  # type: ignore[method-assign]
    rank = world.ranks[0]
    rank.machine.handle(Converge(epoch=1, inc=rank.inc, op=0, desired=OLD), 0.0)
    return world, rank


def _park(world: World, rank: SimRank, att: int = 1, lease_s: float = 10.0) -> None:
    operation, inc = FlushCache(), rank.inc
    rank.machine.handle(
        Prepare(
            epoch=1,
            inc=inc,
            op=1,
            operation=operation,
            mode=Mode.WAIT,
            new=NEW,
            timeout_s=lease_s,
            lease_s=lease_s,
        ),
        world.t,
    )
    rank.machine.staged(1)
    rank.machine.handle(
        Park(epoch=1, inc=inc, op=1, att=att, mode=Mode.WAIT, lease_s=lease_s), world.t
    )


def _words(rank: SimRank) -> list[Word]:
    return [said.word for said in rank.outbox if isinstance(said, Said)]


def a_lapsed_rank_refuses_a_late_commit(guards: Guards) -> None:
    """It has served its old state again meanwhile, so it must not change."""
    world, rank = _rank(guards)
    _park(world, rank)
    later = 10.0 + TIMES.margin_s + 1.0
    rank.machine.tick(later)
    assert rank.machine.is_open
    rank.machine.handle(Commit(epoch=1, inc=rank.inc, op=1, att=1), later)
    assert _words(rank)[-1] is Word.FAILED
    assert rank.machine.state == OLD


def a_committed_rank_stays_closed_after_its_lease(guards: Guards) -> None:
    """The coordinator may be taking back elsewhere what this rank would serve."""
    world, rank = _rank(guards)
    _park(world, rank)
    rank.machine.handle(Commit(epoch=1, inc=rank.inc, op=1, att=1), 1.0)
    assert rank.machine.state == NEW
    rank.machine.tick(10.0 + TIMES.margin_s + 1.0)
    assert not rank.machine.is_open
    rank.machine.handle(Release(epoch=1, inc=rank.inc, op=1, serve=True), 30.0)
    assert rank.machine.is_open


def _front(world: World) -> Front:
    world._start_front()
    assert world.front is not None
    return world.front


def _exchange(world: World, front: Front, rank: SimRank, *, lose: type | None = None) -> None:
    """Let both sides talk until nothing more is said; messages of type `lose` vanish."""
    for _ in range(30):
        world.t += 0.5
        front.pump()
        for action in front.coordinator.step(world.t):
            if isinstance(action, SendTo) and not (lose and isinstance(action.message, lose)):
                op = rank.machine.op
                message = action.message
                assert not isinstance(message, Commit) or not op or message.att == op.att
                rank.machine.handle(message, world.t)
        op = rank.machine.op
        if op is not None and op.phase.value == "staging":
            rank.machine.staged(op.id)
        rank.machine.tick(world.t)
        rank.report()
        front.inbox.extend(rank.outbox)
        rank.outbox.clear()


def _submit(world: World, front: Front) -> None:
    front.coordinator.submit(
        Current(
            op=0,
            op_id="op-1",
            operation=FlushCache(),
            mode=Mode.WAIT,
            att=1,
            timeout_s=60.0,
            started_at=world.t,
            deadline=world.t + 60.0,
            start_by=world.t + 60.0,
            incs={},
            old=OLD,
            new=NEW,
        )
    )


def recovery_commits_the_recorded_attempt(guards: Guards) -> None:
    """After an extension, a restarted frontend must not send COMMIT for attempt 1."""
    world, rank = _rank(guards)
    front = _front(world)
    _exchange(world, front, rank)
    world.requests.clear()
    rank.running = [0]
    _submit(world, front)
    _exchange(world, front, rank)
    front.coordinator.extend(5.0)
    _exchange(world, front, rank)
    rank.running = []
    _exchange(world, front, rank, lose=Commit)  # decided, and the frontend dies before it says so
    assert world.journal.index.decided is not None
    second = _front(world)
    _exchange(world, second, rank)
    assert world.journal.index.open is None
    assert rank.machine.state == NEW


def a_lost_release_is_sent_again(guards: Guards) -> None:
    """The rank's heartbeat names an operation that has ended: it is released."""
    world, rank = _rank(guards)
    front = _front(world)
    _exchange(world, front, rank)
    _submit(world, front)
    _exchange(world, front, rank, lose=Release)
    assert world.journal.index.open is None
    assert not rank.machine.is_open
    _exchange(world, front, rank)
    assert rank.machine.is_open

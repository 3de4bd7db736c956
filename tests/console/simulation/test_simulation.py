"""The job protocol under faults: the console holds for many seeds, weakened it does not."""

from __future__ import annotations

import collections
import gc
from collections.abc import Callable, Iterator

import pytest
from django.db import IntegrityError

from console.actors import Actor
from console.services.engines import engine_register
from console.services.users import user_create
from tests.console.simulation.actors import PEOPLE
from tests.console.simulation.database import Store, in_memory
from tests.console.simulation.directed import DIRECTED, Scene
from tests.console.simulation.hub import START, Violation
from tests.console.simulation.mutants import MUTANTS, weakened
from tests.console.simulation.world import ENGINES, World

JOBS = 5000  # in bin/test; --full runs three times as many besides
PARTS = 8
SEEDS = 40
MUTANT_SEEDS, MUTANT_ASKS = 40, 48


@pytest.fixture(scope="module")
def store(django_db_blocker) -> Iterator[Store]:
    """A database in memory with some engines and people."""
    gc.freeze()  # the ORM makes much garbage, and what is loaded already is none
    with django_db_blocker.unblock(), in_memory() as made:
        for name in ENGINES:
            engine_register(
                name=name,
                control_address=f"ipc:///{name}",
                events_address=f"ipc:///{name}",
                actor=Actor.system("test"),
                now=START,
            )
        for name in PEOPLE:
            user_create(
                username=name, roles=["operator"], is_service=True, actor=Actor.system("test"),
                now=START,
            )  # fmt: skip
        made.keep()
        yield made
    gc.unfreeze()


def run_all(seeds: range, store: Store) -> collections.Counter[str]:
    """What happened in all of them. Raises AssertionError that names the seed."""
    stat: collections.Counter[str] = collections.Counter()
    for seed in seeds:
        world = World(seed, store)
        try:
            world.run()
        except Violation as violation:
            raise AssertionError(f"seed {seed}: {violation}") from violation
        stat.update(world.stat)
    return stat


@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken_under_faults(store: Store, part: int) -> None:
    stat = run_all(range(part, SEEDS, PARTS), store)
    assert stat["jobs"] >= JOBS / PARTS, stat
    # The history must be worth checking: every kind of end and of fault happened.
    for word in ("succeeded", "failed", "expired", "cancelled", "processes killed", "rank deaths"):
        assert stat[word] > 5, (word, stat)
    for word in ("messages lost", "messages doubled", "redis emptied", "reboots", "strangers"):
        assert stat[word] > 0, (word, stat)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_promise_is_broken_in_many_more_jobs(store: Store) -> None:
    stat = run_all(range(SEEDS, 4 * SEEDS), store)
    assert stat["jobs"] >= 3 * JOBS, stat
    for word in ("partial", "interrupted", "journals lost"):
        assert stat[word] > 5, (word, stat)


@pytest.mark.parametrize("name", sorted(MUTANTS.keys() - DIRECTED.keys()))
def test_a_missing_guard_is_noticed(store: Store, name: str) -> None:
    for seed in range(MUTANT_SEEDS):
        world = World(seed, store, asks=MUTANT_ASKS)
        try:
            with weakened(name):
                world.run()
        except (Violation, IntegrityError):
            return
    pytest.fail(f"{MUTANT_SEEDS} seeds did not notice that {name} removes a guard")


@pytest.mark.parametrize("history", sorted(set(DIRECTED.values()), key=lambda one: one.__name__))
def test_a_rarely_needed_guard_holds(store: Store, history: Callable[[Scene], None]) -> None:
    scene = Scene(store)
    with scene.world.seams():
        history(scene)


@pytest.mark.parametrize("name", sorted(DIRECTED))
def test_a_rarely_needed_guard_is_missed_when_gone(store: Store, name: str) -> None:
    scene = Scene(store)
    with pytest.raises((Violation, IntegrityError)), weakened(name), scene.world.seams():
        DIRECTED[name](scene)

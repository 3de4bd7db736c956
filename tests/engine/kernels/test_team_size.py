"""Fewer threads while cores are taken, all of them again afterwards."""

from __future__ import annotations

from engine.kernels.cpu.team_size import LONGEST_RETRY_S, STALLED_STEPS, TeamSize

STEP_S = 0.01


class Machine:
    """Steps by hand: with `free` cores, more threads than that stall."""

    def __init__(self, cores: int) -> None:
        self.cores = self.free = cores
        self.now = 0.0
        self.team = TeamSize(lambda: self.now)

    def step(self) -> int:
        threads = self.team.next(self.cores)
        waited = 0.9 * STEP_S * (threads - 1) if threads > self.free else 0.05 * STEP_S
        self.now += STEP_S
        self.team.stepped(threads, waited, STEP_S)
        return threads

    def steps(self, seconds: float) -> list[int]:
        return [self.step() for _ in range(round(seconds / STEP_S))]


def test_all_threads_on_a_quiet_machine() -> None:
    assert set(Machine(8).steps(20)) == {8}


def test_a_taken_core_costs_a_few_steps_and_a_trial_now_and_then() -> None:
    machine = Machine(2)
    machine.free = 1
    taken = machine.steps(60)
    assert taken[:STALLED_STEPS] == [2] * STALLED_STEPS
    assert taken[STALLED_STEPS] == 1
    assert taken[3000:].count(2) <= 30 / LONGEST_RETRY_S + 1


def test_all_threads_are_back_soon_after_the_core_is() -> None:
    machine = Machine(2)
    machine.free = 1
    machine.steps(60)
    machine.free = 2
    machine.steps(LONGEST_RETRY_S + STEP_S)
    assert set(machine.steps(10)) == {2}


def test_it_goes_down_to_what_is_free_and_never_below_one() -> None:
    machine = Machine(8)
    machine.free = 2
    assert machine.steps(5)[-5:].count(2) >= 4
    machine.free = 0
    assert min(machine.steps(60)) == 1


def test_one_uneven_step_changes_nothing() -> None:
    machine = Machine(4)
    for _ in range(50):
        machine.free = 1
        machine.step()
        machine.free = 4
        assert machine.step() == 4


def test_one_thread_cannot_stall() -> None:
    machine = Machine(1)
    machine.free = 0
    assert set(machine.steps(5)) == {1}

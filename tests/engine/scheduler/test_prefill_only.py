"""Requests that only score their prompt, among requests that generate (handed case E01)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.models.forward_batch import ForwardBatch, PartResult
from engine.scheduler.scheduler import Scheduler
from tests.engine.scheduler.helpers import Seen, ask, make, run
from tests.fakes.runner import FakeRunner, solo

ORDERS = ["pg", "gp", "pgpgpg", "pppggg", "gggppp", "gpgpgp"]
LABELS = [3, 200]


class RecordingRunner(FakeRunner):
    """Also keeps, for each step, how many of its parts asked for a token."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sampled: list[tuple[int, int]] = []  # (parts that sample, parts)

    def forward(self, batch: ForwardBatch) -> list[PartResult]:
        wanted = sum(part.sample is not None for part in batch.parts)
        self.sampled.append((wanted, len(batch.parts)))
        return super().forward(batch)


def add(scheduler: Scheduler, rid: str, prompt: list[int], new: int, **options: Any) -> None:
    ask(scheduler, rid, prompt, new, return_logprob=True, logprob_start=0, **options)


def prompt_of(index: int, length: int) -> list[int]:
    return [index, *range(50, 50 + length - 1)]


def run_checked(scheduler: Scheduler, seen: Seen | None = None) -> Seen:
    """Run to the end; the account is looked at after each step, as a rank does."""
    seen = seen or Seen()
    while scheduler.has_work:
        scheduler.step(0.0)
        seen.take(scheduler)
        scheduler.check_invariants()
        usage = scheduler.kv.usage()
        if not scheduler.running:  # what an idle rank checks for leaks
            assert (usage.held_pages, usage.locked_pages) == (0, 0)
        assert (scheduler.metrics.violation, scheduler.metrics.violations_total) == ("", 0)
    return seen


def scores(seen: Seen, rid: str) -> list[tuple[int, float | None]]:
    """What the client is told of the prompt."""
    entries = [entry for item in seen.items[rid] for entry in item.prompt_logprobs]
    return [(entry.token_id, entry.logprob) for entry in entries]


def next_scores(seen: Seen, rid: str) -> list[tuple[float, int]]:
    """What the client is told of the token after a prompt that generates none."""
    (entry,) = seen.items[rid][-1].logprobs
    return entry.chosen


def expected_scores(prompt: list[int]) -> list[tuple[int, float | None]]:
    return [(token, None if at == 0 else -float(at)) for at, token in enumerate(prompt)]


@pytest.mark.parametrize("chunk", [1, 3, 7, 512])
@pytest.mark.parametrize("order", ORDERS)
def test_mixed_batches_give_each_what_it_gets_alone(order: str, chunk: int) -> None:
    scheduler = make(RecordingRunner(), chunked_prefill_tokens=chunk)
    for index, kind in enumerate(order):
        prompt = prompt_of(index, 9 + index)
        labels = LABELS if index % 4 < 2 else []
        add(scheduler, f"{kind}{index}", prompt, 8 * (kind == "g"), token_ids_logprob=labels)
    seen = run_checked(scheduler)
    for index, kind in enumerate(order):
        rid, prompt = f"{kind}{index}", prompt_of(index, 9 + index)
        assert seen.finish(rid) == "length"
        assert seen.tokens(rid) == (solo(prompt, 8) if kind == "g" else [])
        assert scores(seen, rid) == expected_scores(prompt)
        if kind == "p" and index % 4 < 2:
            assert next_scores(seen, rid) == [(-1.0, label) for label in LABELS]
    usage = scheduler.kv.usage()
    assert usage.free_pages + usage.evictable_pages == usage.total_pages


@pytest.mark.parametrize("first", ["p", "g"])
def test_a_batch_decodes_as_long_as_one_member_generates(first: str) -> None:
    runner = RecordingRunner()
    scheduler = make(runner)
    for index, kind in enumerate([first, "g" if first == "p" else "p"]):
        add(scheduler, kind, prompt_of(index, 9), 8 * (kind == "g"))
    run_checked(scheduler)
    assert runner.sampled == [(1, 2), *[(1, 1)] * 7]  # the merged prefill, then 7 decodes


def test_a_batch_of_nothing_but_scores_samples_nothing_and_ends_in_one_step() -> None:
    runner = RecordingRunner()
    scheduler = make(runner)
    for index in range(3):
        add(scheduler, str(index), prompt_of(index, 9), 0)
    seen = run_checked(scheduler)
    assert runner.sampled == [(0, 3)]
    assert [seen.finish(str(index)) for index in range(3)] == ["length"] * 3


@pytest.mark.parametrize("when", range(1, 9))
def test_one_that_joins_while_another_decodes_changes_neither(when: int) -> None:
    for late_new in (0, 8):
        scheduler, seen = make(chunked_prefill_tokens=4), Seen()
        early, late = prompt_of(1, 10), prompt_of(2, 11)
        add(scheduler, "early", early, 8 - late_new, token_ids_logprob=LABELS)
        for _ in range(when):
            scheduler.step(0.0)
            seen.take(scheduler)
        add(scheduler, "late", late, late_new, token_ids_logprob=LABELS)
        run_checked(scheduler, seen)
        assert seen.tokens("early") == solo(early, 8 - late_new)
        assert seen.tokens("late") == solo(late, late_new)
        assert scores(seen, "early") == expected_scores(early)
        assert scores(seen, "late") == expected_scores(late)


@pytest.mark.parametrize("seed", range(6))
def test_retractions_cost_no_token_and_repeat_no_score(seed: int) -> None:
    rng = random.Random(seed)
    scheduler = make(FakeRunner(num_pages=22), chunked_prefill_tokens=rng.choice([2, 5, 64]))
    kinds = list("pg" * 6)
    rng.shuffle(kinds)
    prompts = [prompt_of(index, rng.randint(5, 30)) for index in range(len(kinds))]
    for index, kind in enumerate(kinds):
        add(scheduler, str(index), prompts[index], 24 * (kind == "g"), token_ids_logprob=LABELS)
    seen = run_checked(scheduler)
    assert scheduler.metrics.retractions_total > 0
    for index, kind in enumerate(kinds):
        rid, prompt = str(index), prompts[index]
        assert seen.tokens(rid) == (solo(prompt, 24) if kind == "g" else [])
        assert scores(seen, rid) == expected_scores(prompt)
        if kind == "p":
            assert next_scores(seen, rid) == [(-1.0, label) for label in LABELS]


@pytest.mark.parametrize("steps", range(1, 12))
def test_a_retraction_by_an_operation_repeats_no_score(steps: int) -> None:
    scheduler, seen = make(chunked_prefill_tokens=5), Seen()
    prompts = {"p": prompt_of(1, 18), "g": prompt_of(2, 17)}
    for rid, prompt in prompts.items():
        add(scheduler, rid, prompt, 8 * (rid == "g"), token_ids_logprob=LABELS)
    for _ in range(steps):
        scheduler.step(0.0)
        seen.take(scheduler)
    scheduler.retract_running()
    scheduler.flush(empty_cache=False)
    run(scheduler, seen)
    for rid, prompt in prompts.items():
        assert scores(seen, rid) == expected_scores(prompt)
        assert seen.tokens(rid) == (solo(prompt, 8) if rid == "g" else [])


def test_random_traffic_of_both_kinds_with_aborts_ends_clean() -> None:
    rng = random.Random(9)
    scheduler = make(FakeRunner(num_pages=30), chunked_prefill_tokens=9, max_running=5)
    seen, asked = Seen(), {}
    for step in range(1200):
        if rng.random() < 0.3:
            prompt = [rng.randrange(3) for _ in range(rng.randint(1, 30))]
            rid, new = f"r{step}", rng.choice([0, 0, 8])
            asked[rid] = (prompt, new)
            add(scheduler, rid, prompt, new, token_ids_logprob=rng.choice([[], LABELS]))
        if rng.random() < 0.03 and asked:
            scheduler.abort(rng.choice(list(asked)))
        if rng.random() < 0.03:
            scheduler.retract_running()
        scheduler.step(0.0)
        seen.take(scheduler)
        scheduler.check_invariants()
    run_checked(scheduler, seen)
    for rid, (prompt, new) in asked.items():
        if seen.finish(rid) == "length":
            assert seen.tokens(rid) == solo(prompt, new)
            assert scores(seen, rid) == expected_scores(prompt)

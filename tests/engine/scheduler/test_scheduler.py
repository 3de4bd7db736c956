"""Requests on one rank: the same tokens whatever happens around them, and no page lost."""

from __future__ import annotations

import random

import pytest

from tests.engine.scheduler.helpers import Seen, ask, make, run
from tests.fakes.runner import EOS, FakeRunner, solo

PROMPT = list(range(40))


def test_a_request_gets_the_tokens_of_a_solo_run() -> None:
    scheduler = make()
    ask(scheduler, "a", PROMPT, 20)
    seen = run(scheduler)
    assert seen.tokens("a") == solo(PROMPT, 20)
    assert seen.finish("a") == "length"


@pytest.mark.parametrize(
    ("length", "cached"), [(1, 0), (3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)]
)
def test_a_repeated_prompt_hits_all_whole_pages_but_its_last_token(
    length: int, cached: int
) -> None:  # I28
    scheduler = make()
    for rid in ("first", "second"):
        ask(scheduler, rid, PROMPT[:length], 1)
        seen = run(scheduler)
    assert seen.cached("second") == cached


def test_extra_keys_do_not_share_a_cache() -> None:  # I30
    scheduler = make()
    hits = []
    for index, key in enumerate(["a", "b", None, "a"]):
        ask(scheduler, str(index), PROMPT[:9], 1, extra_key=key)
        hits.append(run(scheduler).cached(str(index)))
    assert hits == [0, 0, 0, 8]


@pytest.mark.parametrize("chunk", [1, 3, 4, 7, 16, 512])
def test_chunks_do_not_change_the_output(chunk: int) -> None:
    scheduler = make(chunked_prefill_tokens=chunk)
    for index in range(3):
        ask(scheduler, str(index), [index, *PROMPT[: 20 + index]], 6)
    seen = run(scheduler)
    for index in range(3):
        assert seen.tokens(str(index)) == solo([index, *PROMPT[: 20 + index]], 6)


def test_two_requests_that_compute_one_prefix_share_it_afterwards() -> None:  # E03
    scheduler = make(FakeRunner(num_pages=48))
    ask(scheduler, "one", PROMPT, 15)
    ask(scheduler, "two", PROMPT, 15)
    for index in range(6):
        ask(scheduler, f"churn{index}", [200 + index] * 30, 10)
    seen = run(scheduler)
    assert seen.tokens("one") == seen.tokens("two") == solo(PROMPT, 15)
    tables = scheduler.kv.usage()
    assert tables.free_pages + tables.evictable_pages == tables.total_pages


def test_pages_that_run_out_delay_requests_and_lose_none() -> None:  # E12
    scheduler = make(FakeRunner(num_pages=24))
    for index in range(8):
        ask(scheduler, str(index), [index] * 24, 20)
    seen = run(scheduler)
    for index in range(8):
        assert seen.tokens(str(index)) == solo([index] * 24, 20)
    assert scheduler.metrics.retractions_total > 0


def test_a_prefix_is_matched_again_when_the_request_is_really_scheduled() -> None:  # E10
    runner = FakeRunner(num_pages=40, context_len=200)
    scheduler = make(runner)
    cached = list(range(64))
    ask(scheduler, "warm", cached, 1)
    run(scheduler)
    ask(scheduler, "runner", [9] * 100, 20)  # with its output it needs the cached pages
    scheduler.step(0.0)
    ask(scheduler, "late", [*cached, *([7] * 52)], 4)
    seen = run(scheduler, Seen())
    assert seen.tokens("late") == solo([*cached, *([7] * 52)], 4)
    assert seen.cached("late") <= 64


def test_prefill_only_requests_end_without_a_token() -> None:  # E01, I13
    for order in ("pg", "gp", "pgpgpg"):
        scheduler = make()
        for index, kind in enumerate(order):
            new = 0 if kind == "p" else 8
            ask(
                scheduler,
                f"{kind}{index}",
                [index, *PROMPT[:5]],
                new,
                return_logprob=True,
                logprob_start=0,
            )
        seen = run(scheduler)
        for index, kind in enumerate(order):
            rid, prompt = f"{kind}{index}", [index, *PROMPT[:5]]
            assert seen.tokens(rid) == (solo(prompt, 8) if kind == "g" else [])
            assert seen.finish(rid) == "length"
            scores = [entry for item in seen.items[rid] for entry in item.prompt_logprobs]
            assert [entry.token_id for entry in scores] == prompt
            assert scores[0].logprob is None


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("start", [0, 1, 4, 9])
def test_prompt_scores_are_complete_over_chunks_and_hits(chunk: int, start: int) -> None:
    scheduler = make(chunked_prefill_tokens=chunk)
    for rid in ("cold", "warm"):
        ask(scheduler, rid, PROMPT[:12], 2, return_logprob=True, logprob_start=start)
        seen = run(scheduler)
        scores = [entry for item in seen.items[rid] for entry in item.prompt_logprobs]
        assert [entry.token_id for entry in scores] == PROMPT[start:12]
        expected = [None if p == 0 else -float(p) for p in range(start, 12)]
        assert [entry.logprob for entry in scores] == expected


def test_an_abort_needs_no_further_step() -> None:
    scheduler = make()
    ask(scheduler, "run", PROMPT, 100)
    scheduler.step(0.0)
    ask(scheduler, "wait", PROMPT, 5)
    steps = scheduler.runner.steps  # type: ignore[attr-defined]
    assert scheduler.abort("run")
    assert scheduler.abort("wait")
    assert not scheduler.abort("nobody")
    seen = run(scheduler)
    assert scheduler.runner.steps == steps  # type: ignore[attr-defined]
    assert (seen.finish("run"), seen.finish("wait")) == ("abort", "abort")
    assert scheduler.kv.violation(idle=True) == ""


def test_a_stop_token_a_stop_string_and_eos_end_a_request_at_that_token() -> None:  # I10, I34
    runner = FakeRunner(script=[*b"abcSTOP", 7, EOS, EOS, EOS, EOS, EOS])
    cases = {
        "string": ({"stop": ["STOP"]}, 7, "STOP"),
        "token": ({"stop_token_ids": [ord("c")]}, 3, ord("c")),
        "eos": ({}, 9, EOS),
        "first": ({"stop": ["a"]}, 1, "a"),
    }
    for rid, (sampling, count, matched) in cases.items():
        scheduler = make(runner)
        ask(scheduler, rid, PROMPT[:3], 12, sampling=sampling)
        seen = run(scheduler)
        assert len(seen.tokens(rid)) == count
        finish = seen.items[rid][-1].finish
        assert finish is not None
        assert (finish.type, finish.matched) == ("stop", matched)
    scheduler = make(runner)
    ask(scheduler, "ignored", PROMPT[:3], 11, sampling={"ignore_eos": True})
    seen = run(scheduler)
    assert len(seen.tokens("ignored")) == 11


def test_a_batch_of_lengths_ends_each_as_alone() -> None:  # I32
    runner = FakeRunner(script=list(b"x" * 20))
    scheduler = make(runner)
    lengths = {"a": (0, {}), "b": (8, {}), "c": (1, {}), "d": (9, {"stop": ["x"]})}
    for rid, (count, sampling) in lengths.items():
        ask(scheduler, rid, PROMPT[:6], count, sampling=sampling)
    seen = run(scheduler)
    assert [len(seen.tokens(rid)) for rid in lengths] == [0, 8, 1, 1]


def test_a_request_whose_logits_are_not_finite_ends_alone() -> None:
    runner = FakeRunner()
    runner.nan_after = 12
    scheduler = make(runner)
    ask(scheduler, "bad", PROMPT[:10], 20)
    ask(scheduler, "good", PROMPT[:30], 20)
    seen = run(scheduler)
    assert seen.finish("bad") == "abort"
    assert seen.tokens("good") == solo(PROMPT[:30], 20)


def test_a_flush_empties_the_cache_and_counts() -> None:
    scheduler = make()
    ask(scheduler, "a", PROMPT, 4)
    run(scheduler)
    assert scheduler.flush(empty_cache=True) == 10
    runner = scheduler.runner
    assert isinstance(runner, FakeRunner)
    assert (runner.cleared, runner.emptied) == (1, 1)
    ask(scheduler, "b", PROMPT, 4)
    assert run(scheduler).cached("b") == 0
    scheduler.flush(empty_cache=False)
    assert runner.emptied == 1


def test_retracted_requests_resume_and_lose_nothing() -> None:
    scheduler = make()
    seen = Seen()
    for index in range(4):
        ask(scheduler, str(index), [index, *PROMPT[:10]], 20)
    for _ in range(7):
        scheduler.step(0.0)
        seen.take(scheduler)
    scheduler.retract_running()
    assert scheduler.places().running == 0
    assert scheduler.kv.violation(idle=True) == ""
    scheduler.flush(empty_cache=True)
    run(scheduler, seen)
    for index in range(4):
        assert seen.tokens(str(index)) == solo([index, *PROMPT[:10]], 20)
        assert seen.items[str(index)][-1].retractions == 1


def test_random_traffic_with_aborts_and_retractions_keeps_every_promise() -> None:
    rng = random.Random(3)
    scheduler = make(FakeRunner(num_pages=40), chunked_prefill_tokens=9, max_running=6)
    seen, asked = Seen(), {}
    for step in range(1500):
        if rng.random() < 0.25:
            prompt = [rng.randrange(3) for _ in range(rng.randint(1, 40))]
            rid, new = f"r{step}", rng.randint(0, 20)
            asked[rid] = (prompt, new)
            ask(scheduler, rid, prompt, new)
        if rng.random() < 0.05 and asked:
            scheduler.abort(rng.choice(list(asked)))
        if rng.random() < 0.02:
            scheduler.retract_running()
        if not scheduler.running and rng.random() < 0.3:
            scheduler.flush(empty_cache=False)
        scheduler.step(0.0)
        seen.take(scheduler)
        assert scheduler.kv.violation(idle=not scheduler.running) == ""
    run(scheduler, seen)
    for rid, (prompt, new) in asked.items():
        expected, got = solo(prompt, new), seen.tokens(rid)
        assert got == (expected if seen.finish(rid) == "length" else expected[: len(got)])
    assert scheduler.kv.violation(idle=True) == ""

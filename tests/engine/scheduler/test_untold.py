"""Requests that are answered whole: told in runs, and nothing of them is lost or told twice."""

from __future__ import annotations

from engine.ipc.messages import TokenOut
from engine.protocol import WeightsView
from engine.scheduler.req import UNSTREAMED_RUN_TOKENS
from engine.scheduler.scheduler import Scheduler
from tests.engine.scheduler.helpers import Seen, ask, make, run
from tests.fakes.runner import FakeRunner, solo

PROMPT = list(range(12))
LONG = 2 * UNSTREAMED_RUN_TOKENS + 10


def steps(scheduler: Scheduler, seen: Seen, count: int) -> None:
    for _ in range(count):
        scheduler.step(0.0)
        seen.take(scheduler)


def shape(items: list[TokenOut]) -> list[tuple[int, int]]:
    return [(item.start, len(item.token_ids)) for item in items]


def test_the_first_token_is_told_at_once_and_the_others_in_runs() -> None:
    scheduler = make(FakeRunner(num_pages=80))
    ask(scheduler, "whole", PROMPT, LONG, is_streamed=False)
    seen = run(scheduler)
    first, run_of = (0, 1), UNSTREAMED_RUN_TOKENS
    assert shape(seen.items["whole"]) == [
        first,
        (1, run_of),
        (1 + run_of, run_of),
        (1 + 2 * run_of, LONG - 1 - 2 * run_of),
    ]
    assert seen.tokens("whole") == solo(PROMPT, LONG)
    assert seen.finish("whole") == "length"


def test_a_streamed_request_is_told_each_token() -> None:
    scheduler = make(FakeRunner(num_pages=80))
    ask(scheduler, "read", PROMPT, 20)
    assert shape(run(scheduler).items["read"]) == [(index, 1) for index in range(20)]


def test_an_abort_tells_what_was_generated_before_it() -> None:
    scheduler = make()
    ask(scheduler, "whole", PROMPT, 40, is_streamed=False)
    seen = Seen()
    steps(scheduler, seen, 9)
    assert len(seen.tokens("whole")) == 1
    assert scheduler.abort("whole")
    seen.take(scheduler)
    assert seen.tokens("whole") == solo(PROMPT, 9)
    assert seen.finish("whole") == "abort"


def test_a_retracted_request_tells_each_token_once() -> None:
    scheduler = make()
    ask(scheduler, "whole", PROMPT, 30, is_streamed=False)
    seen = Seen()
    steps(scheduler, seen, 7)
    assert scheduler.retract_running() == 1
    seen = run(scheduler, seen)
    assert seen.tokens("whole") == solo(PROMPT, 30)
    assert [item.start for item in seen.items["whole"]] == [0, 1]


def test_a_retracted_request_that_is_aborted_tells_what_it_had() -> None:
    scheduler = make()
    ask(scheduler, "whole", PROMPT, 30, is_streamed=False)
    seen = Seen()
    steps(scheduler, seen, 7)
    scheduler.retract_running()
    scheduler.abort("whole")
    seen.take(scheduler)
    assert seen.tokens("whole") == solo(PROMPT, 7)


def test_tokens_are_told_under_the_weights_that_made_them() -> None:
    runner = FakeRunner()
    scheduler = make(runner)
    runner.weights = WeightsView(version="old")
    ask(scheduler, "whole", PROMPT, 20, is_streamed=False)
    seen = Seen()
    steps(scheduler, seen, 6)
    runner.weights = WeightsView(version="new")
    run(scheduler, seen)
    assert [(i.weight_version, len(i.token_ids)) for i in seen.items["whole"]] == [
        ("old", 1),
        ("old", 5),
        ("new", 14),
    ]


def test_an_abort_after_new_weights_tells_old_tokens_as_old() -> None:
    runner = FakeRunner()
    scheduler = make(runner)
    runner.weights = WeightsView(version="old")
    ask(scheduler, "whole", PROMPT, 20, is_streamed=False)
    seen = Seen()
    steps(scheduler, seen, 6)
    runner.weights = WeightsView(version="new")
    scheduler.abort("whole")
    seen.take(scheduler)
    assert {item.weight_version for item in seen.items["whole"]} == {"old"}


def test_scores_come_with_their_tokens() -> None:
    scheduler = make()
    ask(scheduler, "whole", PROMPT, 20, is_streamed=False, return_logprob=True, logprob_start=0)
    items = run(scheduler).items["whole"]
    assert [len(item.logprobs) for item in items] == [1, 19]
    assert len(items[0].prompt_logprobs) == len(PROMPT)
    assert items[1].prompt_logprobs == []
    told = [entry.token_id for item in items for entry in item.logprobs]
    assert told == [token for item in items for token in item.token_ids]

"""A score's items as requests, run by a scheduler over a small real model, without HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.frontend.http_errors import HTTPError
from engine.frontend.http_score import of_labels
from engine.frontend.limits import Limits
from engine.frontend.score_input import ScoreInput, score_requests
from engine.ipc.messages import Generate
from engine.models.config import read_config
from engine.runner.model_runner import ModelRunner
from engine.scheduler.scheduler import Scheduler
from engine.tokens.tokenizer import Tokenizer
from tests.engine.demo.tiny_model import write_tiny_model
from tests.engine.models.factories import dense_logits, random_weights, tiny_config
from tests.engine.scheduler.helpers import run

LIMITS = Limits(context_len=600, pool_tokens=600, vocab_size=259, dp_size=1)
LABELS = [5, 17, 258]


@pytest.mark.parametrize("chunk", [7, 512])
async def test_scores_of_a_batch_are_those_of_a_dense_pass(tmp_path: Path, chunk: int) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    items = ["one", "another one", "a third that is longer than the others by far"]
    given = ScoreInput(query="Is it this? ", items=list(items), label_token_ids=LABELS)
    tokenizer = Tokenizer(str(folder))
    requests = await score_requests(given, tokenizer, LIMITS)
    assert [tokenizer.decode(new.input_ids) for new in requests] == [given.query + i for i in items]
    runner = ModelRunner(folder, dtype="float32", num_pages=40, page_size=16)
    scheduler = Scheduler(runner, chunked_prefill_tokens=chunk)
    for new in requests:
        scheduler.add(
            Generate(
                epoch=1,
                inc=1,
                rid=new.rid,
                input_ids=new.input_ids,
                sampling=new.sampling,
                return_logprob=new.return_logprob,
                token_ids_logprob=new.token_ids_logprob,
            ),
            0.0,
        )
    seen = run(scheduler)
    config = read_config(folder)
    shapes = {"vocab_size": config.vocab_size, "eos_token_id": min(config.eos_ids)}
    weights = random_weights(tiny_config(**shapes))
    for new in requests:
        (end,) = seen.items[new.rid]
        assert (end.token_ids, len(end.logprobs)) == ([], 1)
        assert [token_id for _, token_id in end.logprobs[0].chosen] == LABELS
        logprobs = [logprob for logprob, _ in end.logprobs[0].chosen]
        logits = dense_logits(config, weights, new.input_ids)[-1]
        assert logprobs == pytest.approx(logits.log_softmax(0)[LABELS].tolist(), abs=1e-4)
        expected = logits[LABELS].softmax(0).tolist()
        assert of_labels(logprobs) == pytest.approx(expected, abs=1e-4)


async def test_ids_are_joined_in_the_order_asked_for() -> None:
    given = ScoreInput(query=[1, 2], items=[[3], [4, 5]], label_token_ids=[0])
    folder = None  # no text, no tokenizer
    found = await score_requests(given, folder, LIMITS)  # type: ignore[arg-type]
    assert [new.input_ids for new in found] == [[1, 2, 3], [1, 2, 4, 5]]
    first = ScoreInput(query=[1, 2], items=[[3], [4, 5]], label_token_ids=[0], item_first=True)
    found = await score_requests(first, folder, LIMITS)  # type: ignore[arg-type]
    assert [new.input_ids for new in found] == [[3, 1, 2], [4, 5, 1, 2]]
    assert len({new.rid for new in found}) == 2
    assert {new.sampling.max_new_tokens for new in found} == {0}


@pytest.mark.parametrize(
    ("labels", "items", "param"),
    [([], [[1]], "label_token_ids"), ([259], [[1]], "label_token_ids"), ([0], [], "items")],
)
async def test_a_refusal_names_the_field(
    labels: list[int], items: list[str | list[int]], param: str
) -> None:
    given = ScoreInput(query=[1], items=items, label_token_ids=labels)
    with pytest.raises(HTTPError) as raised:
        await score_requests(given, None, LIMITS)  # type: ignore[arg-type]
    assert (raised.value.status, raised.value.param) == (400, param)


def test_a_softmax_of_tiny_probabilities_is_still_one() -> None:
    assert of_labels([-5000.0, -5000.0]) == [0.5, 0.5]
    assert of_labels([-1.0]) == [1.0]
    found = of_labels([-3.0, -900.0, -4.0])
    assert found == pytest.approx(torch.tensor([-3.0, -900.0, -4.0]).softmax(0).tolist(), abs=1e-6)

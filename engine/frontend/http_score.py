"""POST /v1/score: how likely each label token is right after query and item, in SGLang's shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from engine.frontend import unimplemented
from engine.frontend.completion import Completion
from engine.frontend.http_errors import HTTPError, json_response
from engine.frontend.http_json import read_json
from engine.frontend.limits import limits_of
from engine.frontend.openai_output import Choice, usage
from engine.frontend.score_input import ScoreInput, score_requests
from engine.frontend.streams import merged, submit_all, unless_gone


async def score(request: Request) -> Response:
    """Answer all items of a call, or none: there is no score for an item that was aborted."""
    state = request.app.state
    given = await read_json(request, ScoreInput, unimplemented.SCORE)
    requests = await score_requests(given, state.tokenizer, limits_of(state.frontend))
    completions = submit_all(state.frontend, state.tokenizer, requests)
    choices = await unless_gone(request, _gather(completions))
    if choices is None:
        return Response(status_code=499)  # nobody is left to read it
    return json_response(_body(given, choices))


async def _gather(completions: list[Completion]) -> list[Choice]:
    choices = [Choice(index, completion) for index, completion in enumerate(completions)]
    async for index, piece in merged(completions):
        choices[index].add(piece)
    return choices


def _body(given: ScoreInput, choices: list[Choice]) -> dict[str, Any]:
    return {
        "scores": [_scores(choice, softmax=given.apply_softmax) for choice in choices],
        "pooled_hidden_states": None,
        "token_logprobs": None,
        "model": given.model,
        "usage": usage(choices, 1),
        "object": "scoring",
        "metadata": {"weight_versions": [choice.weight_version for choice in choices]},
    }


def _scores(choice: Choice, *, softmax: bool) -> list[float]:
    error = choice.error()
    if error is not None:
        raise error
    finish = choice.finish
    if finish is not None and finish.type == "abort":
        raise HTTPError(503, finish.message, retry_after_s=1)
    logprobs = [logprob for logprob, _ in choice.logprobs[0].chosen]
    return of_labels(logprobs) if softmax else [math.exp(value) for value in logprobs]


def of_labels(logprobs: Sequence[float]) -> list[float]:
    """Probabilities among the labels alone: a softmax, which undoes the sum over the others."""
    best = max(logprobs)
    weights = [math.exp(value - best) for value in logprobs]
    total = sum(weights)
    return [weight / total for weight in weights]

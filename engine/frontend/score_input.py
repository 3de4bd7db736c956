"""POST /v1/score's body, and how it becomes single requests: one an item, none with a token."""

from __future__ import annotations

import uuid

import msgspec

from engine.frontend.generate_input import MAX_BATCH, encode
from engine.frontend.http_errors import HTTPError
from engine.frontend.limits import Limits, check_prompt, check_scores
from engine.frontend.requests import NewRequest
from engine.ipc.sampling import SamplingParams
from engine.tokens.tokenizer import Tokenizer


class ScoreInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query and items are all text or all token ids; an item follows the query, or comes first."""

    query: str | list[int]
    items: str | list[str | list[int]]
    label_token_ids: list[int]
    apply_softmax: bool = False
    item_first: bool = False
    model: str = "default"


async def score_requests(
    given: ScoreInput, tokenizer: Tokenizer, limits: Limits
) -> list[NewRequest]:
    """One prefill-only request an item, in order: one bad item refuses the whole call."""
    items: list[str | list[int]] = [given.items] if isinstance(given.items, str) else given.items
    if not items:
        raise HTTPError(400, "items is an empty list", param="items")
    if len(items) > MAX_BATCH:
        raise HTTPError(400, f"a call takes at most {MAX_BATCH} items", param="items")
    _check_labels(given.label_token_ids, len(items), limits)
    prompts = await _prompts(given, items, tokenizer)
    for ids in prompts:
        _check_prompt(ids, limits)
    # Greedy: what would come next is scored, not drawn.
    sampling = SamplingParams(max_new_tokens=0, temperature=0.0)
    return [
        NewRequest(
            rid=f"score-{uuid.uuid4().hex}",
            input_ids=ids,
            sampling=sampling,
            return_logprob=True,
            token_ids_logprob=given.label_token_ids,
        )
        for ids in prompts
    ]


async def _prompts(
    given: ScoreInput, items: list[str | list[int]], tokenizer: Tokenizer
) -> list[list[int]]:
    """Text is joined before it is encoded, so that a word may span query and item."""
    texts = [item for item in items if isinstance(item, str)]
    lists = [item for item in items if isinstance(item, list)]
    if isinstance(given.query, str) and not lists:
        query = given.query
        joined = [text + query if given.item_first else query + text for text in texts]
        return await encode(tokenizer, joined)
    if isinstance(given.query, list) and not texts:
        ids = given.query
        return [item + ids if given.item_first else ids + item for item in lists]
    raise HTTPError(
        400, "query and items must be all text or all lists of token ids", param="items"
    )


def _check_labels(labels: list[int], num_items: int, limits: Limits) -> None:
    if not labels:
        raise HTTPError(400, "label_token_ids is an empty list", param="label_token_ids")
    for token_id in labels:
        if not 0 <= token_id < limits.vocab_size:
            raise HTTPError(
                400,
                f"label_token_ids must be in [0, {limits.vocab_size}), got {token_id}.",
                param="label_token_ids",
            )
    check_scores(num_items * len(labels), "label_token_ids")


def _check_prompt(ids: list[int], limits: Limits) -> None:
    try:
        check_prompt(ids, limits)
    except HTTPError as error:
        error.param = "items"
        raise

"""POST /generate's body, and how it becomes single requests: one a prompt and sample, in order."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from engine.frontend import sampling, unimplemented
from engine.frontend.http_errors import HTTPError
from engine.frontend.http_json import convert
from engine.frontend.limits import Limits, check_extra_key, check_prompt, check_rank, check_scores
from engine.frontend.requests import NewRequest
from engine.frontend.sampling import SamplingInput
from engine.ipc.sampling import SamplingParams
from engine.tokens.tokenizer import Tokenizer

MAX_BATCH = 1024
MAX_TOP_LOGPROBS = 128
MAX_SAMPLES_OF_A_CALL = 4096
LONG_TEXT_CHARS = 10_000
_T = TypeVar("_T")


class GenerateInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prompt or a batch of them. Where a field may be a list, it has one item a prompt."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None  # one prompt, or a list of prompts
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    rid: str | list[str] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    top_logprobs_num: int | list[int] | None = None
    token_ids_logprob: list[int | list[int]] | None = None
    return_text_in_logprobs: bool = False
    stream: bool = False
    routed_dp_rank: int | None = None
    data_parallel_rank: int | None = None  # SGLang's older name for the same
    extra_key: str | list[str] | None = None
    return_prompt_token_ids: bool = False


@dataclass(frozen=True)
class Asked:
    """A body's requests. `is_single` answers with an object instead of a list."""

    requests: list[NewRequest]
    is_single: bool
    input: GenerateInput


async def requests_of(given: GenerateInput, tokenizer: Tokenizer, limits: Limits) -> Asked:
    """All requests of a body, validated together: one bad member refuses the whole call."""
    prompts, is_batch = await _prompts(given, tokenizer)
    if len(prompts) > MAX_BATCH:
        raise HTTPError(400, f"a batch takes at most {MAX_BATCH} prompts", param="text")
    for ids in prompts:
        check_prompt(ids, limits)
    rank = given.routed_dp_rank
    if rank is None:
        rank = given.data_parallel_rank
    check_rank(rank, limits)
    requests = []
    with _inside_sampling_params():
        settings = _settings(given, len(prompts), is_batch)
        counts = [sampling.num_samples(item) for item in settings]
        if sum(counts) > MAX_SAMPLES_OF_A_CALL:
            raise HTTPError(
                400,
                f"a call takes at most {MAX_SAMPLES_OF_A_CALL} prompts times samples",
                param="n",
            )
        checked = [
            sampling.checked(
                item,
                prompt_tokens=len(ids),
                context_len=limits.longest,
                vocab_size=limits.vocab_size,
            )
            for ids, item in zip(prompts, settings, strict=True)
        ]
    num_scores = 0
    for index, (ids, params) in enumerate(zip(prompts, checked, strict=True)):
        template = _template(given, index, len(prompts), ids, limits)
        num_scores += template.scores_of(params) * counts[index]
        for sample in range(counts[index]):
            seed = None if params.seed is None else params.seed + sample
            rid = _rid(given.rid, index, len(prompts), sample if max(counts) > 1 else None)
            requests.append(
                dataclasses.replace(
                    template,
                    rid=rid,
                    sampling=msgspec.structs.replace(params, seed=seed),
                    routed_dp_rank=rank,
                )
            )
    rids = [request.rid for request in requests]
    if len(set(rids)) != len(rids):
        raise HTTPError(400, f"Duplicate request ID in the batch: {_twice(rids)}", param="rid")
    check_scores(num_scores, "return_logprob")
    return Asked(requests, not is_batch and max(counts) == 1, given)


def _twice(items: Sequence[str]) -> str:
    return next(item for item in items if items.count(item) > 1)


async def _prompts(given: GenerateInput, tokenizer: Tokenizer) -> tuple[list[list[int]], bool]:
    if given.text is not None and given.input_ids is not None:
        raise HTTPError(400, "give text or input_ids, not both", param="input_ids")
    if given.text is not None:
        is_batch = isinstance(given.text, list)
        texts = given.text if isinstance(given.text, list) else [given.text]
        if not texts:
            raise HTTPError(400, "text is an empty list", param="text")
        if any(not text for text in texts):
            raise HTTPError(400, "The prompt is empty; give at least one token.", param="text")
        return await encode(tokenizer, texts), is_batch
    if given.input_ids is None:
        raise HTTPError(
            400, "Either text, input_ids or input_embeds should be provided.", param="text"
        )
    if not given.input_ids:
        raise HTTPError(400, "input_ids is empty", param="input_ids")
    prompts, flat = split_ids(given.input_ids, "input_ids")
    return ([flat], False) if flat else (prompts, True)


def split_ids(items: Sequence[int | list[int]], name: str) -> tuple[list[list[int]], list[int]]:
    """A list of lists, or one flat list: the other is empty. Raises HTTPError for a mixture."""
    lists = [item for item in items if isinstance(item, list)]
    flat = [item for item in items if isinstance(item, int)]
    if lists and flat:
        raise HTTPError(400, f"{name} mixes token ids and lists of them", param=name)
    return lists, flat


async def encode(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Token ids of prompts; long texts do not hold the event loop up."""
    if sum(map(len, texts)) > LONG_TEXT_CHARS:
        return await asyncio.to_thread(tokenizer.encode_all, texts)
    return tokenizer.encode_all(texts)


def _settings(given: GenerateInput, count: int, is_batch: bool) -> list[SamplingInput]:
    params = given.sampling_params
    if isinstance(params, list):
        if not is_batch or len(params) != count:
            raise HTTPError(
                400,
                f"sampling_params is a list of {len(params)} for {count} prompts",
                param="sampling_params",
            )
        return [convert(item, SamplingInput, unimplemented.SAMPLING) for item in params]
    return [convert(params or {}, SamplingInput, unimplemented.SAMPLING)] * count


@contextmanager
def _inside_sampling_params() -> Iterator[None]:
    """Errors in here name the field with its path."""
    try:
        yield
    except HTTPError as error:
        if error.param and error.param != "sampling_params":
            error.param = f"sampling_params.{error.param}"
        raise


def _template(
    given: GenerateInput, index: int, count: int, ids: list[int], limits: Limits
) -> NewRequest:
    """What all samples of one prompt share."""
    return_logprob = bool(_item(given.return_logprob, index, count, "return_logprob", False))
    start = _item(given.logprob_start_len, index, count, "logprob_start_len", -1)
    top = _item(given.top_logprobs_num, index, count, "top_logprobs_num", 0)
    if not -1 <= start <= len(ids):
        raise HTTPError(
            400,
            f"logprob_start_len must be in [-1, {len(ids)}], got {start}.",
            param="logprob_start_len",
        )
    if not 0 <= top <= min(MAX_TOP_LOGPROBS, limits.vocab_size):
        raise HTTPError(
            400,
            f"top_logprobs_num must be in [0, {MAX_TOP_LOGPROBS}], got {top}.",
            param="top_logprobs_num",
        )
    chosen = _chosen(given, index, count)
    for token_id in chosen:
        if not 0 <= token_id < limits.vocab_size:
            raise HTTPError(
                400,
                f"token_ids_logprob must be in [0, {limits.vocab_size}), got {token_id}.",
                param="token_ids_logprob",
            )
    extra_key = _item(given.extra_key, index, count, "extra_key", None)
    check_extra_key(extra_key)
    return NewRequest(
        rid="",
        input_ids=ids,
        sampling=SamplingParams(),
        return_logprob=return_logprob,
        logprob_start=start if return_logprob and start < len(ids) else -1,
        top_logprobs_num=top if return_logprob else 0,
        token_ids_logprob=chosen if return_logprob else [],
        extra_key=extra_key,
        is_streamed=given.stream,
    )


def _item(value: _T | list[_T] | None, index: int, count: int, name: str, default: Any) -> Any:
    """This prompt's value of a field that may be a list."""
    if value is None:
        return default
    if isinstance(value, list):
        if len(value) != count:
            raise HTTPError(
                400, f"{name} is a list of {len(value)} for {count} prompts", param=name
            )
        return value[index]
    return value


def _chosen(given: GenerateInput, index: int, count: int) -> list[int]:
    lists, flat = split_ids(given.token_ids_logprob or [], "token_ids_logprob")
    if flat or not lists:
        return flat
    if len(lists) != count:
        raise HTTPError(
            400,
            f"token_ids_logprob is a list of {len(lists)} for {count} prompts",
            param="token_ids_logprob",
        )
    return lists[index]


def _rid(given: str | list[str] | None, index: int, count: int, sample: int | None) -> str:
    if given is None:
        return uuid.uuid4().hex
    rid = _item(given, index, count, "rid", None)
    if count > 1 and isinstance(given, str):
        rid = f"{given}_{index}"
    if not rid or len(rid) > 256:
        raise HTTPError(400, "rid must have 1 to 256 characters", param="rid")
    return str(rid) if sample is None else f"{rid}_{sample}"

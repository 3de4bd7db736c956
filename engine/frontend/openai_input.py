"""Bodies of /v1/completions and /v1/chat/completions, and how they become single requests."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from typing import Any, Literal

import msgspec

from engine.frontend import sampling
from engine.frontend.generate_input import (
    LONG_TEXT_CHARS,
    MAX_BATCH,
    MAX_SAMPLES_OF_A_CALL,
    MAX_TOP_LOGPROBS,
    encode,
    split_ids,
)
from engine.frontend.http_errors import HTTPError
from engine.frontend.limits import Limits, check_extra_key, check_prompt, check_rank, check_scores
from engine.frontend.requests import NewRequest
from engine.frontend.sampling import SamplingInput
from engine.ipc.sampling import SamplingParams
from engine.tokens.tokenizer import Tokenizer, TokenizerError

_MAX_MESSAGES = 4096


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a stream ends with."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CommonInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that both routes share."""

    model: str = "default"
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    n: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    rid: str | None = None
    extra_key: str | None = None
    routed_dp_rank: int | None = None
    data_parallel_rank: int | None = None
    user: str | None = None  # who asks is not our business; accepted, not used
    metadata: dict[str, Any] | None = None  # idem

    @property
    def includes_usage(self) -> bool:
        """A last event with the counts is wanted."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def sampling_input(self, max_new_tokens: int | None) -> SamplingInput:
        """These settings in native names."""
        return SamplingInput(
            max_new_tokens=max_new_tokens,
            min_new_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self.logit_bias,
            sampling_seed=self.seed,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            skip_special_tokens=self.skip_special_tokens,
            no_stop_trim=self.no_stop_trim,
            n=self.n,
        )


class CompletionInput(CommonInput, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]] | None = None
    max_tokens: int | None = 16
    logprobs: int | None = None
    echo: bool = False


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None


class ChatInput(CommonInput, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None


async def completion_requests(
    given: CompletionInput, tokenizer: Tokenizer, limits: Limits
) -> list[NewRequest]:
    """One request a prompt and sample, in that order. Raises HTTPError."""
    prompts = await _prompts(given, tokenizer)
    if given.max_tokens is not None and given.max_tokens < (0 if given.echo else 1):
        raise HTTPError(400, "max_tokens must be positive", param="max_tokens")
    top = given.logprobs or 0
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise HTTPError(
            400, f"logprobs must be in [0, {MAX_TOP_LOGPROBS}], got {top}.", param="logprobs"
        )
    if given.n is not None and given.n * len(prompts) > MAX_SAMPLES_OF_A_CALL:
        raise HTTPError(
            400, f"a call takes at most {MAX_SAMPLES_OF_A_CALL} prompts times samples", param="n"
        )
    found: list[NewRequest] = []
    for index, ids in enumerate(prompts):
        base = NewRequest(
            rid="",
            input_ids=ids,
            sampling=SamplingParams(),
            return_logprob=given.logprobs is not None,
            logprob_start=0 if given.echo and given.logprobs is not None else -1,
            top_logprobs_num=top,
            extra_key=given.extra_key,
            is_streamed=given.stream,
        )
        suffix = f"_{index}" if len(prompts) > 1 else ""
        found += _samples(given, base, given.max_tokens, limits, suffix)
    check_scores(sum(new.scores_of(new.sampling) for new in found), "logprobs")
    return found


async def _prompts(given: CompletionInput, tokenizer: Tokenizer) -> list[list[int]]:
    prompt = given.prompt
    if prompt is None:
        raise HTTPError(400, "prompt is required", param="prompt")
    if not prompt or (isinstance(prompt, list) and any(item in ("", []) for item in prompt)):
        raise HTTPError(400, "Prompt cannot be empty", param="prompt")
    if isinstance(prompt, str):
        return await encode(tokenizer, [prompt])
    if len(prompt) > MAX_BATCH and not isinstance(prompt[0], int):
        raise HTTPError(400, f"a batch takes at most {MAX_BATCH} prompts", param="prompt")
    texts = [item for item in prompt if isinstance(item, str)]
    if texts and len(texts) < len(prompt):
        raise HTTPError(400, "prompt mixes texts and token ids", param="prompt")
    if texts:
        return await encode(tokenizer, texts)
    prompts, flat = split_ids([item for item in prompt if not isinstance(item, str)], "prompt")
    return prompts or [flat]


async def chat_requests(given: ChatInput, tokenizer: Tokenizer, limits: Limits) -> list[NewRequest]:
    """One request a sample. Raises HTTPError."""
    if not given.messages:
        raise HTTPError(400, "Messages cannot be empty.", param="messages")
    if len(given.messages) > _MAX_MESSAGES:
        raise HTTPError(400, f"messages takes at most {_MAX_MESSAGES}", param="messages")
    top = given.top_logprobs or 0
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise HTTPError(
            400,
            f"top_logprobs must be in [0, {MAX_TOP_LOGPROBS}], got {top}.",
            param="top_logprobs",
        )
    if top and not given.logprobs:
        raise HTTPError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    messages = [
        {"role": message.role, "content": _content(message, index)}
        for index, message in enumerate(given.messages)
    ]

    def rendered() -> list[int]:
        text = tokenizer.render_chat(messages, variables=given.chat_template_kwargs)
        return tokenizer.encode_rendered(text)

    is_long = sum(len(message["content"]) for message in messages) > LONG_TEXT_CHARS
    try:
        input_ids = await asyncio.to_thread(rendered) if is_long else rendered()
    except TokenizerError as error:
        raise HTTPError(400, str(error), param="messages") from error
    base = NewRequest(
        rid="",
        input_ids=input_ids,
        sampling=SamplingParams(),
        return_logprob=bool(given.logprobs),
        top_logprobs_num=top,
        extra_key=given.extra_key,
        is_streamed=given.stream,
    )
    asked = given.max_completion_tokens
    asked = given.max_tokens if asked is None else asked
    if asked is None:  # as long as the context allows
        asked = max(0, limits.longest - len(base.input_ids))
    found = _samples(given, base, asked, limits, "")
    check_scores(sum(new.scores_of(new.sampling) for new in found), "logprobs")
    return found


def _content(message: Message, index: int) -> str:
    content = message.content
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in content:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise HTTPError(
                400,
                f"messages[{index}].content: only parts of type text are implemented",
                param="messages",
            )
        texts.append(part["text"])
    return "".join(texts)


def _samples(
    given: CommonInput,
    base: NewRequest,
    max_new_tokens: int | None,
    limits: Limits,
    suffix: str,
) -> list[NewRequest]:
    check_prompt(base.input_ids, limits)
    rank = given.routed_dp_rank if given.routed_dp_rank is not None else given.data_parallel_rank
    check_rank(rank, limits)
    settings = given.sampling_input(max_new_tokens)
    params = sampling.checked(
        settings,
        prompt_tokens=len(base.input_ids),
        context_len=limits.longest,
        vocab_size=limits.vocab_size,
    )
    count = sampling.num_samples(settings)
    if given.rid is not None and len(given.rid) > 256:
        raise HTTPError(400, "rid must have at most 256 characters", param="rid")
    check_extra_key(given.extra_key)
    stem = given.rid + suffix if given.rid else ""
    found = []
    for sample in range(count):
        tail = f"_{sample}" if count > 1 else ""
        seed = None if params.seed is None else params.seed + sample
        found.append(
            dataclasses.replace(
                base,
                rid=stem + tail if stem else uuid.uuid4().hex,
                sampling=msgspec.structs.replace(params, seed=seed),
                routed_dp_rank=rank,
            )
        )
    return found

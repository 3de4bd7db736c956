"""Sampling settings as callers write them, checked against their bounds. SGLang's names."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from engine.frontend.http_errors import HTTPError
from engine.frontend.query import is_natural
from engine.ipc.sampling import SamplingParams

MAX_SAMPLES = 128
MAX_STOPS = 64
MAX_STOP_CHARS = 1024
_MAX_BIASES = 1024
DEFAULT_MAX_NEW_TOKENS = 128


class SamplingInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`sampling_params` of a request; null means the default."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None  # values are checked by hand: null is refused
    sampling_seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    n: int | None = None


def num_samples(given: SamplingInput) -> int:
    """How many outputs a prompt gets. Raises HTTPError."""
    n = 1 if given.n is None else given.n
    if not 1 <= n <= MAX_SAMPLES:
        raise HTTPError(400, f"n must be in [1, {MAX_SAMPLES}], got {n}.", param="n")
    return n


def checked(
    given: SamplingInput, *, prompt_tokens: int, context_len: int, vocab_size: int
) -> SamplingParams:
    """Validated settings for a prompt of this length. Raises HTTPError naming field and bound."""
    defaults = SamplingParams()
    max_new = _max_new_tokens(given.max_new_tokens, prompt_tokens, context_len)
    min_new = given.min_new_tokens or 0
    if not 0 <= min_new <= max_new:
        raise HTTPError(
            400,
            f"min_new_tokens must be in [0, max_new_tokens({max_new})], got {min_new}.",
            param="min_new_tokens",
        )
    temperature = _or(given.temperature, defaults.temperature)
    if not (math.isfinite(temperature) and temperature >= 0):
        raise HTTPError(
            400,
            f"temperature must be a non-negative finite number, got {temperature:g}.",
            param="temperature",
        )
    top_k = given.top_k if given.top_k is not None and given.top_k > 0 else -1
    return SamplingParams(
        max_new_tokens=max_new,
        min_new_tokens=min_new,
        temperature=abs(temperature),  # -0.0 is 0.0
        top_p=_bounded("top_p", given.top_p, 1.0, 0, 1, "(0, 1]"),
        top_k=min(top_k, vocab_size),
        min_p=_bounded("min_p", given.min_p, 0.0, 0, 1, "[0, 1]"),
        frequency_penalty=_bounded(
            "frequency_penalty", given.frequency_penalty, 0.0, -2, 2, "[-2, 2]"
        ),
        presence_penalty=_bounded(
            "presence_penalty", given.presence_penalty, 0.0, -2, 2, "[-2, 2]"
        ),
        repetition_penalty=_bounded(
            "repetition_penalty",
            given.repetition_penalty,
            1.0,
            0,
            2,
            "(0, 2] (1.0 = no penalty)",
        ),
        logit_bias=_logit_bias(given.logit_bias or {}, vocab_size),
        seed=_seed(given.sampling_seed),
        stop=_stops(given.stop),
        stop_token_ids=_token_ids("stop_token_ids", given.stop_token_ids or [], vocab_size),
        ignore_eos=bool(given.ignore_eos),
        skip_special_tokens=given.skip_special_tokens is not False,
        no_stop_trim=bool(given.no_stop_trim),
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _max_new_tokens(asked: int | None, prompt_tokens: int, context_len: int) -> int:
    """An explicit number is never cut silently; the default gives way to the context."""
    if asked is None:
        return max(0, min(DEFAULT_MAX_NEW_TOKENS, context_len - prompt_tokens))
    if asked < 0:
        raise HTTPError(
            400, f"max_new_tokens must be at least 0, got {asked}.", param="max_new_tokens"
        )
    if prompt_tokens + asked > context_len:
        raise HTTPError(
            400,
            f"Requested token count exceeds the model's maximum context length of {context_len} "
            f"tokens. You requested a total of {prompt_tokens + asked} tokens: {prompt_tokens} "
            f"tokens from the input messages and {asked} tokens for the completion. Please reduce "
            "the number of tokens in the input messages or the completion to fit within the limit.",
            param="max_new_tokens",
        )
    return asked


def _bounded(
    name: str, value: float | None, default: float, low: float, high: float, bounds: str
) -> float:
    if value is None:
        return default
    inside = low < value <= high if bounds.startswith("(") else low <= value <= high
    if not math.isfinite(value) or not inside:
        raise HTTPError(400, f"{name} must be in {bounds}, got {value:g}.", param=name)
    return float(value)


def _seed(seed: int | None) -> int | None:
    if seed is not None and not -(2**63) <= seed < 2**63:
        raise HTTPError(400, "sampling_seed must fit 64 bits.", param="sampling_seed")
    return seed


def _stops(stop: str | list[str] | None) -> list[str]:
    stops = [stop] if isinstance(stop, str) else list(stop or [])
    if len(stops) > MAX_STOPS or any(len(text) > MAX_STOP_CHARS for text in stops):
        raise HTTPError(
            400,
            f"stop takes at most {MAX_STOPS} strings of at most {MAX_STOP_CHARS} characters.",
            param="stop",
        )
    return [text for text in stops if text]


def _token_ids(name: str, ids: list[int], vocab_size: int) -> list[int]:
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise HTTPError(
                400, f"{name} must be in [0, {vocab_size}), got {token_id}.", param=name
            )
    return ids


def _logit_bias(given: dict[str, Any], vocab_size: int) -> dict[int, float]:
    if len(given) > _MAX_BIASES:
        raise HTTPError(400, f"logit_bias takes at most {_MAX_BIASES} tokens.", param="logit_bias")
    biases: dict[int, float] = {}
    for key, value in given.items():
        if not (is_natural(key) and int(key) < vocab_size):
            raise HTTPError(
                400,
                f"logit_bias keys are token ids in [0, {vocab_size}), got {key[:40]!r}.",
                param="logit_bias",
            )
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not -100 <= value <= 100:
            raise HTTPError(
                400,
                f"logit_bias values must be in [-100, 100], got {value!r} for {key}.",
                param="logit_bias",
            )
        biases[int(key)] = float(value)
    return biases

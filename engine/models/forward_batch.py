"""One step's work and its outcome, in plain Python: what the scheduler hands to a runner.

Knows no tensor library, so scheduling is tested without one. Every list is owned by the caller and
not kept by the runner after `forward` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.ipc.sampling import SamplingParams


@dataclass(slots=True, frozen=True)
class SampleSpec:
    """How to choose the token after a part, and which log probabilities to report with it."""

    params: SamplingParams
    prompt_ids: list[int]  # for repetition_penalty
    output_ids: list[int]  # generated so far; its length is the step of a seeded draw
    stop_ids: list[int]  # tokens that end the request (EOS too): masked until min_new_tokens
    return_logprob: bool = False
    top_logprobs_num: int = 0
    token_ids_logprob: list[int] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class Part:
    """One request's share of a step: `input_ids` follow `start` tokens that are already in KV.

    `pages[i]` holds tokens [i*page_size, (i+1)*page_size) of the request and covers
    start + len(input_ids) tokens. `sample` is None when the part does not end the prompt.
    `logprobs_from`: report log probabilities of the prompt's tokens at positions >= it that this
    part's rows predict (row at position p predicts p + 1), None for none; `next_id` is the prompt's
    token after this part, if there is one, so that a chunk border loses no position.
    """

    input_ids: Sequence[int]
    start: int
    pages: list[int]
    sample: SampleSpec | None
    logprobs_from: int | None = None
    next_id: int | None = None
    top_logprobs_num: int = 0
    token_ids_logprob: list[int] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class ForwardBatch:
    """Parts of one step: decodes (one token each) and extends, in any order."""

    parts: list[Part]


@dataclass(slots=True, frozen=True)
class TokenLogprobs:
    """Log probabilities of one position (natural log, of the distribution before temperature)."""

    token_id: int
    logprob: float
    top: list[tuple[float, int]] = field(default_factory=list)  # (logprob, token_id), best first
    chosen_ids: list[tuple[float, int]] = field(default_factory=list)  # as token_ids_logprob asked


@dataclass(slots=True, frozen=True)
class PartResult:
    """What a step gave one part: the sampled token, and log probabilities where asked."""

    next_token: int | None
    output: TokenLogprobs | None = None
    prompt: list[TokenLogprobs] = field(default_factory=list)


class NonFiniteLogitsError(RuntimeError):
    """The model produced NaN for the named parts of the batch (indices into ForwardBatch.parts)."""

    def __init__(self, parts: list[int]) -> None:
        super().__init__(f"non-finite logits in parts {parts}")
        self.parts = parts

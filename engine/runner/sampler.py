"""Chooses the next token of each row of a batch's logits, as each request asked.

Follows SGLang: frequency and presence penalties count output tokens only, the repetition penalty
prompt and output; then min_new_tokens, then logit_bias, then temperature, top_k, top_p and min_p,
each judged on the same distribution. Knows no model and no KV; leaves the logits as they are.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence

import torch

from engine.ipc.sampling import SamplingParams
from engine.models.forward_batch import SampleSpec

# Below this SGLang takes the most likely token, too: dividing by it would overflow.
MIN_TEMPERATURE = 1e-6
# Sorting a whole vocabulary is slow and top_p rarely needs it: so many tokens are tried first.
FIRST_TOKENS = 1024

_MASK = (1 << 64) - 1


def is_greedy(params: SamplingParams) -> bool:
    """Return whether the most likely token is taken, after penalties."""
    return params.is_greedy or params.temperature < MIN_TEMPERATURE


def is_plain_greedy(spec: SampleSpec) -> bool:
    """Return whether the model's own argmax is the answer, and nobody wants to see the logits."""
    return (
        is_greedy(spec.params)
        and not spec.return_logprob
        and not spec.top_logprobs_num
        and not spec.token_ids_logprob
        and not _changes_logits(spec)
    )


class Sampler:
    """Draws tokens. Its only state is the generator behind requests without a seed."""

    def __init__(self, seed: int | None = None) -> None:
        """Start the generator of unseeded draws; None takes the system's entropy."""
        self._random = random.Random(seed)  # noqa: S311 (sampling is no secret)

    def sample(self, logits: torch.Tensor, specs: Sequence[SampleSpec]) -> list[int]:
        """Return a token per row of raw fp32 `logits` (R, V), finite, on any device."""
        changed = [row for row, spec in enumerate(specs) if _changes_logits(spec)]
        if changed:
            logits = logits.clone()
            for row in changed:
                _change_logits(logits[row], specs[row])
        tokens = [0] * len(specs)
        greedy = [row for row, spec in enumerate(specs) if is_greedy(spec.params)]
        if greedy:
            best = logits[greedy] if len(greedy) < len(specs) else logits
            for row, token in zip(greedy, best.argmax(dim=1).tolist(), strict=True):
                tokens[row] = token
        drawn = [row for row, spec in enumerate(specs) if not is_greedy(spec.params)]
        for row, token in zip(drawn, self._draw(logits, drawn, specs), strict=True):
            tokens[row] = token
        return tokens

    def _draw(
        self, logits: torch.Tensor, rows: list[int], specs: Sequence[SampleSpec]
    ) -> list[int]:
        """Draw for `rows`, grouped by how many tokens must be sorted for them."""
        vocab = logits.shape[1]
        points = [self._uniform(specs[row]) for row in rows]  # in the batch's order
        groups: dict[int, list[int]] = defaultdict(list)
        for index, row in enumerate(rows):
            groups[_sorted_tokens(specs[row].params, vocab)].append(index)
        tokens = [0] * len(rows)
        for width, members in groups.items():
            params = [specs[rows[i]].params for i in members]
            found = draw_rows(
                logits[[rows[i] for i in members]], params, [points[i] for i in members], width
            )
            for index, token in zip(members, found, strict=True):
                tokens[index] = token
        return tokens

    def _uniform(self, spec: SampleSpec) -> float:
        seed = spec.params.seed
        return self._random.random() if seed is None else uniform(seed, len(spec.output_ids))


def uniform(seed: int, step: int) -> float:
    """Return a number in [0, 1) that depends on its arguments only.

    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) as a hash: once for the seed, once for the step.
    """
    mixed = _mix64(_mix64(seed & _MASK) ^ step)
    return float(mixed >> 11) / (1 << 53)


def _mix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def draw_rows(
    logits: torch.Tensor, params: Sequence[SamplingParams], points: Sequence[float], width: int
) -> list[int]:
    """Draw a token per row by its `points`, a number in [0, 1) each; rows are independent.

    `width` 0 keeps the whole distribution; else the `width` most likely tokens are sorted and
    filtered, and all of them for a row whose filter might reach further.
    """
    device = logits.device

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)[:, None]

    probs = (logits / column([p.temperature for p in params]).float()).softmax(dim=1)  # (R, V)
    if not width:
        drawn: list[int] = _invert(probs.double().cumsum(dim=1), column(list(points))).tolist()
        return drawn
    vocab = logits.shape[1]
    top, ids = probs.topk(width, dim=1)  # (R, width), most likely first
    top = top.double()
    sums = top.cumsum(dim=1)
    rank = torch.arange(width, device=device)
    top_k = column([p.top_k if p.top_k > 0 else vocab for p in params])
    kept = (
        (rank < top_k)
        & (sums - top <= column([p.top_p for p in params]))
        & (top >= top[:, :1] * column([p.min_p for p in params]))
    )
    at = _invert((top * kept).cumsum(dim=1), column(list(points)))
    tokens: list[int] = ids.gather(1, at[:, None])[:, 0].tolist()
    if width < vocab:
        # The last sorted token was kept, and not because the row wants just so many.
        cut = kept[:, -1] & (top_k[:, 0] > width)
        for row in cut.nonzero()[:, 0].tolist():
            one = slice(row, row + 1)
            tokens[row] = draw_rows(logits[one], params[one], points[one], vocab)[0]
    return tokens


def _invert(sums: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Return, per row, the first index whose cumulative weight exceeds its point's share (R,)."""
    found = torch.searchsorted(sums, points * sums[:, -1:], right=True)
    return found[:, 0].clamp_(max=sums.shape[1] - 1)


def _sorted_tokens(params: SamplingParams, vocab: int) -> int:
    """Return how many tokens a row's filters need in order; depends on the row alone."""
    if 0 < params.top_k < vocab:
        return min(vocab, 1 << (params.top_k - 1).bit_length())
    if params.top_p < 1.0 or params.min_p > 0.0:
        return min(vocab, FIRST_TOKENS)
    return 0


def _changes_logits(spec: SampleSpec) -> bool:
    params = spec.params
    return (
        bool(params.frequency_penalty or params.presence_penalty or params.logit_bias)
        or params.repetition_penalty != 1.0
        or len(spec.output_ids) < params.min_new_tokens
    )


def _change_logits(row: torch.Tensor, spec: SampleSpec) -> None:
    """Apply penalties, min_new_tokens and logit_bias to one row (V,) in place.

    Ids outside the vocabulary are skipped: a client may name any stop token.
    """
    params, vocab, device = spec.params, row.shape[0], row.device
    if spec.output_ids and (params.frequency_penalty or params.presence_penalty):
        counts = Counter(spec.output_ids)
        penalties = [
            params.frequency_penalty * n + params.presence_penalty for n in counts.values()
        ]
        row[list(counts)] -= torch.tensor(penalties, device=device)
    if params.repetition_penalty != 1.0:
        seen = list({*spec.prompt_ids, *spec.output_ids})
        scores = row[seen]
        scale = params.repetition_penalty
        row[seen] = torch.where(scores > 0, scores / scale, scores * scale)
    if len(spec.output_ids) < params.min_new_tokens:
        row[[i for i in spec.stop_ids if 0 <= i < vocab]] = float("-inf")
    bias = {i: value for i, value in params.logit_bias.items() if 0 <= i < vocab}
    if bias:
        row[list(bias)] += torch.tensor(list(bias.values()), device=device)

"""Chooses the next token of each row of a batch's logits, as each request asked.

Follows SGLang: frequency and presence penalties count output tokens only, the repetition penalty
prompt and output; then min_new_tokens, then logit_bias, then temperature, top_k, top_p and min_p,
each judged on the same distribution. Draws with the CPU's compiled kernel where there is one, else
with torch. Knows no model and no KV; leaves the logits as they are.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)

from engine.ipc.sampling import SamplingParams
from engine.kernels.cpu.library import CDraw, CPULibrary
from engine.models.forward_batch import SampleSpec

# Below this SGLang takes the most likely token, too: dividing by it would overflow.
MIN_TEMPERATURE = 1e-6
# Sorting a whole vocabulary is slow and top_p rarely needs it: so many tokens are tried, in turn.
SORTED_TOKENS = (64, 1024, 8192)
# Cumulative weights are taken of so many tokens at a time, and within one of these blocks.
BLOCK_TOKENS = 256

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

    def __init__(self, seed: int | None = None, library: CPULibrary | None = None) -> None:
        """Start the generator of unseeded draws; None takes the system's entropy.

        With `library` logits are on the CPU, and it draws.
        """
        self._random = random.Random(seed)  # noqa: S311 (sampling is no secret)
        self._library = library

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
        """Draw for `rows`."""
        vocab = logits.shape[1]
        points = [self._uniform(specs[row]) for row in rows]  # in the batch's order
        if not rows:
            return []
        if self._library is not None:
            asked = [specs[row].params for row in rows]
            draws = [_compiled(*one, vocab) for one in zip(asked, points, strict=True)]
            return self._library.draw(logits, rows, draws)
        # With torch, grouped by how many tokens must be sorted for them.
        groups: dict[int, list[int]] = defaultdict(list)
        for index, row in enumerate(rows):
            groups[_sorted_tokens(specs[row].params, vocab)].append(index)
        tokens = [0] * len(rows)
        for width, members in groups.items():
            params = [specs[rows[i]].params for i in members]
            some = logits if len(members) == len(logits) else logits[[rows[i] for i in members]]
            found = draw_rows(some, params, [points[i] for i in members], width)
            for index, token in zip(members, found, strict=True):
                tokens[index] = token
        return tokens

    def _uniform(self, spec: SampleSpec) -> float:
        seed = spec.params.seed
        return self._random.random() if seed is None else uniform(seed, len(spec.output_ids))


def _compiled(params: SamplingParams, point: float, vocab: int) -> CDraw:
    top_k = params.top_k if params.top_k > 0 else vocab
    return CDraw(params.temperature, top_k, params.top_p, params.min_p, point)


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
    filtered, and more of them for rows whose filter may reach further.
    """
    device = logits.device
    temperature = torch.tensor([p.temperature for p in params], device=device)
    # A softmax in place, but for the division: a copy of the logits is megabytes.
    weights = logits / temperature[:, None]  # (R, V)
    weights.sub_(weights.amax(dim=1, keepdim=True)).exp_()
    at = torch.tensor(points, dtype=torch.float64, device=device)  # (R,)
    tokens: list[int]
    if not width:
        tokens = _draw_from_all(weights, at).tolist()
        return tokens
    return _draw_from_top(weights, weights.sum(dim=1, dtype=torch.float64), params, at, width)


def _draw_from_top(
    weights: torch.Tensor,
    sums: torch.Tensor,
    params: Sequence[SamplingParams],
    at: torch.Tensor,
    width: int,
) -> list[int]:
    """Draw from the sorted `width` largest weights (R, V), whose sums are (R,), as filtered."""
    vocab = weights.shape[1]
    top, ids = weights.topk(width, dim=1)  # (R, width), most likely first
    kept, may_go_on = _filter(top.double() / sums[:, None], params, vocab)
    tokens: list[int] = ids.gather(1, _invert(kept, at)[:, None])[:, 0].tolist()
    rest = may_go_on.nonzero()[:, 0].tolist() if width < vocab else []
    if rest:
        wider = next((n for n in SORTED_TOKENS if width < n < vocab), vocab)
        some = _draw_from_top(weights[rest], sums[rest], [params[r] for r in rest], at[rest], wider)
        for row, token in zip(rest, some, strict=True):
            tokens[row] = token
    return tokens


def _filter(
    top: torch.Tensor, params: Sequence[SamplingParams], vocab: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Zero the sorted probabilities (R, W) that a row's filters exclude.

    Also return the rows (R,) whose last one was kept though their top_k allows more.
    """

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=top.device)[:, None]

    top_k = column([p.top_k if p.top_k > 0 else vocab for p in params])
    kept = (
        (torch.arange(top.shape[1], device=top.device) < top_k)
        & (top.cumsum(dim=1) - top <= column([p.top_p for p in params]))
        & (top >= top[:, :1] * column([p.min_p for p in params]))
    )
    return top * kept, kept[:, -1] & (top_k[:, 0] > top.shape[1])


def _draw_from_all(weights: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Draw from whole distributions (R, V) in two steps: a block of tokens, then one of these."""
    rows, vocab = weights.shape
    if vocab % BLOCK_TOKENS:
        weights = F.pad(weights, (0, -vocab % BLOCK_TOKENS))
    blocks = weights.view(rows, -1, BLOCK_TOKENS)
    sums = blocks.sum(dim=2, dtype=torch.float64)  # (R, blocks)
    block = _invert(sums, points)  # (R,)
    before = sums.cumsum(dim=1) - sums
    row = torch.arange(rows, device=weights.device)
    # What is left of the point, as a share of the block: again a number in [0, 1).
    share = (points * sums.sum(dim=1) - before[row, block]) / sums[row, block]
    inside = _invert(blocks[row, block].double(), share.clamp(0.0, 1.0 - 2.0**-53))
    return block * BLOCK_TOKENS + inside


def _invert(weights: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Return, per row of weights (R, N), the first index at which a point's share is exceeded.

    Never one of weight zero: a point below 1 times the total lies below the total.
    """
    sums = weights.cumsum(dim=1)
    found = torch.searchsorted(sums, points[:, None] * sums[:, -1:], right=True)
    return found[:, 0].clamp_(max=weights.shape[1] - 1)


def _sorted_tokens(params: SamplingParams, vocab: int) -> int:
    """Return how many tokens a row's filters need in order; depends on the row alone."""
    if 0 < params.top_k < vocab:
        return min(vocab, 1 << (params.top_k - 1).bit_length())
    if params.top_p < 1.0 or params.min_p > 0.0:
        return min(vocab, SORTED_TOKENS[0])
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
        row[torch.tensor(list(counts), device=device)] -= torch.tensor(penalties, device=device)
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(list({*spec.prompt_ids, *spec.output_ids}), device=device)
        scores = row[seen]
        scale = params.repetition_penalty
        row[seen] = torch.where(scores > 0, scores / scale, scores * scale)
    if len(spec.output_ids) < params.min_new_tokens:
        row[[i for i in spec.stop_ids if 0 <= i < vocab]] = float("-inf")
    bias = {i: value for i, value in params.logit_bias.items() if 0 <= i < vocab}
    if bias:
        row[list(bias)] += torch.tensor(list(bias.values()), device=device)

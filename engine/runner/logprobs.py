"""Log probabilities of tokens, from raw logits: before temperature, penalties and filters.

Natural logarithms, always finite: logits are checked before they come here, so no token has
probability zero. Memory is bounded by the rows that the caller hands over at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine.models.forward_batch import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to report of one row."""

    token_id: int
    top_num: int = 0
    chosen_ids: list[int] = field(default_factory=list)


def token_logprobs(logits: torch.Tensor, wanted: Sequence[Wanted]) -> list[TokenLogprobs]:
    """Return one record per row of raw, finite fp32 `logits` (R, V)."""
    if not wanted:
        return []
    totals = logits.logsumexp(dim=1, keepdim=True)  # (R, 1)
    ids = torch.tensor([[w.token_id] for w in wanted], device=logits.device)
    of_token = _minus(logits.gather(1, ids), totals)[:, 0].tolist()
    width = min(max(w.top_num for w in wanted), logits.shape[1])
    top_values: list[list[float]] = [[]] * len(wanted)
    top_ids: list[list[int]] = [[]] * len(wanted)
    if width:
        top = logits.topk(width, dim=1)
        top_values, top_ids = _minus(top.values, totals).tolist(), top.indices.tolist()
    return [
        TokenLogprobs(
            token_id=w.token_id,
            logprob=of_token[row],
            top=list(zip(top_values[row][: w.top_num], top_ids[row][: w.top_num], strict=True)),
            chosen_ids=_chosen(logits[row], totals[row], w.chosen_ids),
        )
        for row, w in enumerate(wanted)
    ]


def _chosen(row: torch.Tensor, total: torch.Tensor, ids: list[int]) -> list[tuple[float, int]]:
    if not ids:
        return []
    return list(zip(_minus(row[ids], total).tolist(), ids, strict=True))


def _minus(scores: torch.Tensor, totals: torch.Tensor) -> torch.Tensor:
    return (scores - totals).clamp_(max=0.0)  # rounding may put a sure token above 0

"""Torch's paged attention against attention over plain, unpaged KV."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.paged_attention import (
    AttentionPlan,
    DecodeParts,
    ExtendPart,
    attend,
    store_kv,
)

HEADS, KV_HEADS, DIM, PAGE = 4, 2, 8, 4
EXTENDS = [(3, 5, [7, 2]), (0, 2, [5])]  # cached, new, pages
DECODES = [(0, [1]), (6, [9, 4]), (3, [3])]  # position, pages


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int) -> torch.Tensor:
    """Attend from q (n, H, D), at positions `first` on, over k and v (context, Hkv, D)."""
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / DIM**0.5
    hidden = torch.arange(len(k)) > torch.arange(first, first + len(q))[:, None]
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


@pytest.mark.parametrize("seed", range(3))
def test_a_mixed_step_is_attention_over_each_parts_own_tokens(seed: int) -> None:
    torch.manual_seed(seed)
    k_pool = torch.full((10, KV_HEADS, PAGE, DIM), float("nan"))
    v_pool = k_pool.clone()
    cached_and_new = [*((c, n, p) for c, n, p in EXTENDS), *((at, 1, p) for at, p in DECODES)]
    total = sum(n for _, n, _ in cached_and_new)
    q, k, v = torch.randn(total, HEADS, DIM), *torch.randn(2, total, KV_HEADS, DIM)
    histories, page_of, slot_of, row = [], [], [], 0
    for cached, new, pages in cached_and_new:
        history = torch.randn(2, cached, KV_HEADS, DIM)
        for t in range(cached):
            k_pool[pages[t // PAGE], :, t % PAGE] = history[0, t]
            v_pool[pages[t // PAGE], :, t % PAGE] = history[1, t]
        page_of += [pages[t // PAGE] for t in range(cached, cached + new)]
        slot_of += [t % PAGE for t in range(cached, cached + new)]
        rows = slice(row, row + new)
        histories.append(
            (rows, cached, *(torch.cat((h, x[rows])) for h, x in zip(history, (k, v), strict=True)))
        )
        row += new
    extends = [
        ExtendPart(
            rows, torch.tensor(pages), torch.arange(c + n) <= torch.arange(c, c + n)[:, None]
        )
        for (rows, *_), (c, n, pages) in zip(histories, EXTENDS, strict=False)
    ]
    positions = torch.tensor([at for at, _ in DECODES])
    decodes = DecodeParts(
        rows=torch.arange(total - len(DECODES), total),
        pages=torch.tensor([(pages * 2)[:2] for _, pages in DECODES]),
        visible=torch.arange(2 * PAGE) <= positions[:, None],
    )
    plan = AttentionPlan(torch.tensor(page_of), torch.tensor(slot_of), decodes, extends)
    store_kv(k, v, k_pool, v_pool, plan)
    found = attend(q, k_pool, v_pool, plan)
    for rows, cached, all_k, all_v in histories:
        torch.testing.assert_close(found[rows], plain(q[rows], all_k, all_v, cached))

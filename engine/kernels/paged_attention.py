"""Paged attention in torch operators, for any device: the fallback, and the kernels' reference.

A part's pages are gathered into one run of KV and handed to torch's own attention. Pages are
(Hkv, S, D). Slots behind a part's last token may hold anything, NaN included: they never enter the
arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)


@dataclass(frozen=True, slots=True)
class ExtendPart:
    """One part of several tokens."""

    rows: slice  # its tokens in the step
    pages: torch.Tensor  # (W,) int64
    visible: torch.Tensor  # (tokens, context) bool


@dataclass(frozen=True, slots=True)
class DecodeParts:
    """All parts of a single token, padded to the longest."""

    rows: torch.Tensor  # (B,) int64: their tokens in the step
    pages: torch.Tensor  # (B, W) int64
    visible: torch.Tensor  # (B, W * S) bool


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What is the same in every layer of a step."""

    page_of_token: torch.Tensor  # (T,) int64
    slot_of_token: torch.Tensor  # (T,) int64
    decodes: DecodeParts | None
    extends: list[ExtendPart]


def store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    plan: AttentionPlan,
) -> None:
    """Write k and v (T, Hkv, D) of the step's tokens into their pages."""
    k_pool[plan.page_of_token, :, plan.slot_of_token] = k
    v_pool[plan.page_of_token, :, plan.slot_of_token] = v


def attend(
    q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, plan: AttentionPlan
) -> torch.Tensor:
    """Return the attention of q (T, H, D), whose k and v are stored already; (T, H, D)."""
    out = torch.empty_like(q)
    if plan.decodes is not None:
        rows = plan.decodes.rows
        out[rows] = _attend_decodes(q[rows], k_pool, v_pool, plan.decodes)
    for part in plan.extends:
        out[part.rows] = _attend_extend(q[part.rows], k_pool, v_pool, part)
    return out


def _attend_decodes(
    q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, parts: DecodeParts
) -> torch.Tensor:
    hidden_slots = ~parts.visible[:, None, :, None]  # (B, 1, W * S, 1)
    k = _gather(k_pool, parts.pages).masked_fill_(hidden_slots, 0)  # (B, Hkv, W * S, D)
    v = _gather(v_pool, parts.pages).masked_fill_(hidden_slots, 0)
    mask = parts.visible[:, None, None, :]  # (B, 1, 1, W * S)
    y = F.scaled_dot_product_attention(q[:, :, None], k, v, attn_mask=mask, enable_gqa=True)
    return y[:, :, 0]  # (B, H, D)


def _attend_extend(
    q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, part: ExtendPart
) -> torch.Tensor:
    context = part.visible.shape[1]
    k = _gather(k_pool, part.pages[None])[:, :, :context]  # (1, Hkv, context, D)
    v = _gather(v_pool, part.pages[None])[:, :, :context]
    y = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k, v, attn_mask=part.visible[None, None], enable_gqa=True
    )
    return y[0].transpose(0, 1)  # (tokens, H, D)


def _gather(pool: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
    """Copy pages (B, W) out of a pool (P, Hkv, S, D) into runs of tokens (B, Hkv, W * S, D)."""
    batch, width = pages.shape
    _, heads, size, dim = pool.shape
    runs = pool[pages]  # (B, W, Hkv, S, D)
    return runs.transpose(1, 2).reshape(batch, heads, width * size, dim)

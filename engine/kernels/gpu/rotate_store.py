"""From the fused projection to attention: norm heads, rotate q and k, store k and v in their pages.

One launch where torch takes about twenty. Rounds to the model's dtype where the torch operators do,
after the norm and after the rotation, so that the same keys are cached.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.gpu.page_table import PageTable, padded


@triton.jit
def _norm_and_rotate(
    low,  # (heads, half): the first half of each head, the model's dtype
    high,  # (heads, half)
    cos,  # (1, half) fp32
    sin,
    weight,  # (2 * half,)
    at,  # (1, half)
    is_inside,  # (1, half)
    eps,
    half: tl.constexpr,
    has_norm: tl.constexpr,
):
    """Both halves of each head after norm and rotation, in the model's dtype."""
    dtype: tl.constexpr = low.dtype
    low, high = low.to(tl.float32), high.to(tl.float32)
    if has_norm:
        squares = tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)
        scale = (1.0 / tl.sqrt(squares / (2 * half) + eps))[:, None]
        low_weight = tl.load(weight + at, mask=is_inside, other=0.0).to(tl.float32)
        high_weight = tl.load(weight + half + at, mask=is_inside, other=0.0).to(tl.float32)
        low = (low * scale * low_weight).to(dtype).to(tl.float32)
        high = (high * scale * high_weight).to(dtype).to(tl.float32)
    return (low * cos - high * sin).to(dtype), (high * cos + low * sin).to(dtype)


@triton.jit
def rotate_store_kernel(
    qkv,  # (T, (H + 2 Hkv) * D), contiguous
    q_out,  # (T, H, D), contiguous
    k_pool,  # (P, Hkv, S, D), contiguous
    v_pool,
    pos,  # (T,) int32
    first_page,  # (T,) int32
    pages,  # (W,) int32
    cos_table,  # (context, D / 2) fp32, contiguous
    sin_table,
    q_norm,  # (D,); read where has_norm
    k_norm,
    eps,
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    page_size: tl.constexpr,
    has_norm: tl.constexpr,
    heads_block: tl.constexpr,
    kv_heads_block: tl.constexpr,
    half_block: tl.constexpr,
):
    """One program a token, over all its heads; none of a token that only pads.

    Equals `q, k, v = qkv.split(...); q_out = rotate(norm(q)); k_pool[page, :, slot] =
    rotate(norm(k)); v_pool[page, :, slot] = v`.
    """
    token = tl.program_id(0).to(tl.int64)
    at_pos = tl.load(pos + token)
    if at_pos >= 0:
        half: tl.constexpr = head_dim // 2
        at = tl.arange(0, half_block)[None, :]
        is_half = at < half
        cos = tl.load(cos_table + at_pos * half + at, mask=is_half, other=0.0)
        sin = tl.load(sin_table + at_pos * half + at, mask=is_half, other=0.0)

        head = tl.arange(0, heads_block)[:, None]
        is_inside = (head < num_heads) & is_half
        source = qkv + token * (num_heads + 2 * num_kv_heads) * head_dim
        element = head * head_dim + at
        low = tl.load(source + element, mask=is_inside, other=0.0)
        high = tl.load(source + element + half, mask=is_inside, other=0.0)
        low, high = _norm_and_rotate(low, high, cos, sin, q_norm, at, is_half, eps, half, has_norm)
        target = q_out + token * num_heads * head_dim + element
        tl.store(target, low, mask=is_inside)
        tl.store(target + half, high, mask=is_inside)

        page = tl.load(pages + tl.load(first_page + token) + at_pos // page_size).to(tl.int64)
        head = tl.arange(0, kv_heads_block)[:, None]
        is_inside = (head < num_kv_heads) & is_half
        source += num_heads * head_dim
        element = head * head_dim + at
        low = tl.load(source + element, mask=is_inside, other=0.0)
        high = tl.load(source + element + half, mask=is_inside, other=0.0)
        low, high = _norm_and_rotate(low, high, cos, sin, k_norm, at, is_half, eps, half, has_norm)
        slot = page * num_kv_heads * page_size * head_dim + (at_pos % page_size) * head_dim
        slot += head * page_size * head_dim + at
        tl.store(k_pool + slot, low, mask=is_inside)
        tl.store(k_pool + slot + half, high, mask=is_inside)

        source += num_kv_heads * head_dim
        low = tl.load(source + element, mask=is_inside, other=0.0)
        high = tl.load(source + element + half, mask=is_inside, other=0.0)
        tl.store(v_pool + slot, low, mask=is_inside)
        tl.store(v_pool + slot + half, high, mask=is_inside)


@dataclass(frozen=True, slots=True)
class Rotary:
    """Angles of all positions, and the norms of heads where the model has them."""

    cos: torch.Tensor  # (context, D / 2) fp32
    sin: torch.Tensor
    q_norm: torch.Tensor | None  # (D,)
    k_norm: torch.Tensor | None
    eps: float


def rotate_store(
    qkv: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    table: PageTable,
    rotary: Rotary,
) -> torch.Tensor:
    """Return q (T, H, D), normed and rotated, of qkv (T, (H + 2 Hkv) * D); k and v are stored in
    pools (P, Hkv, S, D). Rows of tokens that only pad are left as they were allocated."""
    tokens, width = qkv.shape
    _, kv_heads, page_size, dim = k_pool.shape
    heads = width // dim - 2 * kv_heads
    q = qkv.new_empty(tokens, heads, dim)
    if tokens:
        has_norm = rotary.q_norm is not None
        rotate_store_kernel[(tokens,)](
            qkv,
            q,
            k_pool,
            v_pool,
            table.pos,
            table.first_page,
            table.pages,
            rotary.cos,
            rotary.sin,
            rotary.q_norm if has_norm else qkv,
            rotary.k_norm if has_norm else qkv,
            rotary.eps,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=dim,
            page_size=page_size,
            has_norm=has_norm,
            heads_block=padded(heads),
            kv_heads_block=padded(kv_heads),
            half_block=padded(dim // 2),
        )
    return q

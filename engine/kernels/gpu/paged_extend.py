"""Attention of runs of new tokens over paged KV: their prefix, and each other up to themselves.

All runs of a step in one launch: a program takes a tile of one run's tokens, wherever the run lies.
Keys that every token of the tile may see are taken without a mask first; only the tile's own are
compared with positions. Tiled as in FlashAttention-2 (Dao 2023, arXiv 2307.08691).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.gpu.page_table import PageTable, padded

MIN_DIM = 16  # of a matrix product on the card


@triton.jit
def _over_keys(
    query,  # (rows_block, dim_block)
    best,  # (rows_block,) fp32
    total,
    sums,  # (rows_block, dim_block) fp32
    query_pos,  # (rows_block,)
    k_pool,
    v_pool,
    request_pages,
    kv_head,
    begin,
    end,
    scale,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    page_size: tl.constexpr,
    dim_block: tl.constexpr,
    block_tokens: tl.constexpr,
    is_causal: tl.constexpr,
):
    """Take the keys from `begin` to `end` in; not causal: every row sees them all, and they are
    whole blocks."""
    dim = tl.arange(0, dim_block)
    is_dim = dim < head_dim
    inside = kv_head * page_size * head_dim + dim[None, :]
    for start in range(begin, end, block_tokens):
        token = start + tl.arange(0, block_tokens)
        if is_causal:
            is_token = token < end
            is_kv = is_token[:, None] & is_dim[None, :]
            page = tl.load(request_pages + token // page_size, mask=is_token, other=0)
        else:
            is_kv = is_dim[None, :]
            page = tl.load(request_pages + token // page_size)
        at = page.to(tl.int64) * (num_kv_heads * page_size * head_dim)
        at += (token % page_size) * head_dim
        k = tl.load(k_pool + at[:, None] + inside, mask=is_kv, other=0.0)
        scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
        if is_causal:
            is_seen = (token[None, :] <= query_pos[:, None]) & is_token[None, :]
            scores = tl.where(is_seen, scores, -float("inf"))
        # A padding row sees no key at all; 0 in place of its -inf keeps NaN out of its sums.
        better = tl.maximum(best, tl.max(scores, 1))
        base = tl.where(better == -float("inf"), 0.0, better)
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(best - base)
        v = tl.load(v_pool + at[:, None] + inside, mask=is_kv, other=0.0)
        share = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        sums = sums * fade[:, None] + share
        total = total * fade + tl.sum(weights, 1)
        best = better
    return best, total, sums


@triton.jit
def extend_kernel(
    q,  # (T, H, D), contiguous
    k_pool,  # (P, Hkv, S, D), contiguous
    v_pool,
    pos,  # (T,) int32
    first_page,  # (T,) int32
    pages,  # (W,) int32
    tile_row,  # (tiles,) int32: the tile's first token
    tile_stop,  # (tiles,) int32: the token after its last; equal to the first: nothing to do
    out,  # (T, H, D), contiguous
    scale,  # of scores, times log2(e)
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    page_size: tl.constexpr,
    rows_block: tl.constexpr,
    dim_block: tl.constexpr,
    block_tokens: tl.constexpr,
):
    """One program a head and a tile. A slot beyond the tile's last token is never loaded.

    Equals, for the tile's tokens, `F.scaled_dot_product_attention(q, K[:context], V[:context],
    attn_mask=key_pos <= query_pos, enable_gqa=True)`.
    """
    head, tile = tl.program_id(0), tl.program_id(1)
    first, stop = tl.load(tile_row + tile), tl.load(tile_stop + tile)
    if first < stop:
        row, dim = first + tl.arange(0, rows_block), tl.arange(0, dim_block)
        is_query = (row < stop)[:, None] & (dim < head_dim)[None, :]
        query_at = (row.to(tl.int64)[:, None] * num_heads + head) * head_dim + dim[None, :]
        query = tl.load(q + query_at, mask=is_query, other=0.0)
        query_pos = tl.load(pos + row, mask=row < stop, other=-1)
        first_pos = tl.load(pos + first)
        context = first_pos + (stop - first)
        shared = (first_pos + 1) // block_tokens * block_tokens  # keys that every row sees
        request_pages = pages + tl.load(first_page + first)
        kv_head = head // (num_heads // num_kv_heads)
        best = tl.full([rows_block], -float("inf"), tl.float32)
        total = tl.zeros([rows_block], tl.float32)
        sums = tl.zeros([rows_block, dim_block], tl.float32)
        best, total, sums = _over_keys(
            query, best, total, sums, query_pos, k_pool, v_pool, request_pages, kv_head,
            0, shared, scale,
            num_kv_heads, head_dim, page_size, dim_block, block_tokens, False,
        )  # fmt: skip
        best, total, sums = _over_keys(
            query, best, total, sums, query_pos, k_pool, v_pool, request_pages, kv_head,
            shared, context, scale,
            num_kv_heads, head_dim, page_size, dim_block, block_tokens, True,
        )  # fmt: skip
        sums = sums / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out + query_at, sums.to(out.dtype.element_ty), mask=is_query)


@dataclass(frozen=True, slots=True)
class TileShape:
    """How much one program takes at a time; chosen by dtype, not measured on a card yet."""

    rows: int  # tokens
    keys: int
    warps: int
    stages: int


def tile_shape(dtype: torch.dtype, head_dim: int) -> TileShape:
    """Return a shape whose tiles fit the shared memory of a Hopper processor."""
    if dtype == torch.float32:
        return TileShape(rows=32, keys=32, warps=8, stages=2)
    if head_dim > 128:
        return TileShape(rows=64, keys=32, warps=4, stages=2)
    return TileShape(rows=128, keys=64, warps=8, stages=3)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Runs of tokens of one request each, at most `shape.rows` of them. int32, on the device."""

    row: torch.Tensor  # (tiles,) the first token
    stop: torch.Tensor  # (tiles,) the one after the last
    shape: TileShape


def attend_extends(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    table: PageTable,
    tiles: Tiles,
    out: torch.Tensor,
) -> None:
    """Write the attention of the tiles' tokens into their rows of `out` (T, H, D).

    q is (T, H, D), pools (P, Hkv, S, D); the tokens' own k and v are stored already.
    """
    if not len(tiles.row):
        return
    _, heads, dim = q.shape
    _, kv_heads, page_size, _ = k_pool.shape
    extend_kernel[(heads, len(tiles.row))](
        q,
        k_pool,
        v_pool,
        table.pos,
        table.first_page,
        table.pages,
        tiles.row,
        tiles.stop,
        out,
        math.log2(math.e) / math.sqrt(dim),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        page_size=page_size,
        rows_block=tiles.shape.rows,
        dim_block=padded(dim, MIN_DIM),
        block_tokens=tiles.shape.keys,
        num_warps=tiles.shape.warps,
        num_stages=tiles.shape.stages,
    )

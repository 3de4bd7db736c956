"""Attention of single tokens over paged KV: all heads of a group read each key once.

A context is split among programs, so that a few long requests fill the device too; a second kernel
joins the parts. The number of splits is fixed by the launch and their length by each request, so
that one captured graph serves every length. Online softmax after Milakov and Gimelshein 2018 (arXiv
1805.02867), splits after flash-decoding (Dao, Haziza, Massa and Sizov 2023).
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from engine.kernels.gpu.page_table import PageTable, padded

MIN_ROWS = 16  # of a matrix product on the card; heads of a group are padded to it
MIN_CHUNK_TOKENS = 256  # a shorter split costs more in joining than it saves
MAX_SPLITS = 64


@triton.jit
def _chunk_tokens(
    context,
    num_splits,
    min_chunk: tl.constexpr,
    block_tokens: tl.constexpr,
):
    """How many tokens each split of a context takes: whole blocks."""
    even = tl.maximum((context + num_splits - 1) // num_splits, min_chunk)
    return (even + block_tokens - 1) // block_tokens * block_tokens


@triton.jit(do_not_specialize=["num_splits"])
def decode_kernel(
    q,  # (T, H, D), contiguous
    k_pool,  # (P, Hkv, S, D), contiguous
    v_pool,
    pos,  # (T,) int32
    first_page,  # (T,) int32
    pages,  # (W,) int32
    rows,  # (B,) int32: the tokens to compute
    out,  # (T, H, D), written unless is_split
    partial,  # (B, H, splits, D) fp32, written if is_split
    partial_log,  # (B, H, splits) fp32: log2 of the sum of exponentials
    scale,  # of scores, times log2(e)
    num_splits,
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    page_size: tl.constexpr,
    is_split: tl.constexpr,
    min_chunk: tl.constexpr,
    group_block: tl.constexpr,
    dim_block: tl.constexpr,
    block_tokens: tl.constexpr,
):
    """One program a request, a kv head and a split. A slot beyond the context is never loaded.

    Equals `F.scaled_dot_product_attention(q[b], K[b, :context], V[b, :context], enable_gqa=True)`,
    or the share that one split has in it.
    """
    request, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    group: tl.constexpr = num_heads // num_kv_heads
    row = tl.load(rows + request).to(tl.int64)
    context = tl.load(pos + row) + 1
    chunk = _chunk_tokens(context, num_splits, min_chunk, block_tokens)
    begin = split * chunk
    end = tl.minimum(begin + chunk, context)
    if (begin < end) | (not is_split):
        member, dim = tl.arange(0, group_block), tl.arange(0, dim_block)
        is_dim = dim < head_dim
        is_query = (member < group)[:, None] & is_dim[None, :]
        head = kv_head * group + member
        query_at = (row * num_heads + head[:, None]) * head_dim + dim[None, :]
        query = tl.load(q + query_at, mask=is_query, other=0.0)
        best = tl.full([group_block], -float("inf"), tl.float32)
        total = tl.zeros([group_block], tl.float32)
        sums = tl.zeros([group_block, dim_block], tl.float32)
        request_pages = pages + tl.load(first_page + row)
        inside = kv_head * page_size * head_dim + dim[None, :]
        for start in range(begin, end, block_tokens):
            token = start + tl.arange(0, block_tokens)
            is_token = token < end
            page = tl.load(request_pages + token // page_size, mask=is_token, other=0)
            at = page.to(tl.int64) * (num_kv_heads * page_size * head_dim)
            at += (token % page_size) * head_dim
            is_kv = is_token[:, None] & is_dim[None, :]
            k = tl.load(k_pool + at[:, None] + inside, mask=is_kv, other=0.0)
            scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
            scores = tl.where(is_token[None, :], scores, -float("inf"))
            better = tl.maximum(best, tl.max(scores, 1))
            weights = tl.exp2(scores - better[:, None])
            fade = tl.exp2(best - better)
            v = tl.load(v_pool + at[:, None] + inside, mask=is_kv, other=0.0)
            share = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            sums = sums * fade[:, None] + share
            total = total * fade + tl.sum(weights, 1)
            best = better
        sums = sums / tl.where(total > 0, total, 1.0)[:, None]
        if is_split:
            cell = (request * num_heads + head) * num_splits + split
            tl.store(partial_log + cell, best + tl.log2(total), mask=member < group)
            at_cell = cell.to(tl.int64)[:, None] * head_dim + dim[None, :]
            tl.store(partial + at_cell, sums, mask=is_query)
        else:
            tl.store(out + query_at, sums.to(out.dtype.element_ty), mask=is_query)


@triton.jit(do_not_specialize=["num_splits"])
def join_kernel(
    partial,  # (B, H, splits, D) fp32
    partial_log,  # (B, H, splits) fp32
    pos,  # (T,) int32
    rows,  # (B,) int32
    out,  # (T, H, D)
    num_splits,
    num_heads: tl.constexpr,
    head_dim: tl.constexpr,
    min_chunk: tl.constexpr,
    block_tokens: tl.constexpr,
    splits_block: tl.constexpr,
    dim_block: tl.constexpr,
):
    """One program a request and a head: the splits' means, weighted by their sums.

    Equals `(w * partial).sum(2) / w.sum(2)` with `w = partial_log.exp2()`; zeros without context.
    """
    request, head = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + request).to(tl.int64)
    context = tl.load(pos + row) + 1
    chunk = _chunk_tokens(context, num_splits, min_chunk, block_tokens)
    split, dim = tl.arange(0, splits_block), tl.arange(0, dim_block)
    is_used = split * chunk < context  # nothing was written for the others
    is_dim = dim < head_dim
    cell = (request * num_heads + head) * num_splits + split
    logs = tl.load(partial_log + cell, mask=is_used, other=-float("inf"))
    best = tl.max(logs, 0)
    weights = tl.where(is_used, tl.exp2(logs - tl.where(context > 0, best, 0.0)), 0.0)
    total = tl.sum(weights, 0)
    at = cell.to(tl.int64)[:, None] * head_dim + dim[None, :]
    parts = tl.load(partial + at, mask=is_used[:, None] & is_dim[None, :], other=0.0)
    mean = tl.sum(parts * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    to = out + (row * num_heads + head) * head_dim + dim
    tl.store(to, mean.to(out.dtype.element_ty), mask=is_dim)


def splits_for(requests: int, kv_heads: int, context_tokens: int, processors: int) -> int:
    """Return among how many programs to split each context, to give each processor two.

    `context_tokens` is the longest context that may come. At most MAX_SPLITS.
    """
    wanted = -(-2 * processors // max(1, requests * kv_heads))
    return max(1, min(wanted, MAX_SPLITS, -(-context_tokens // MIN_CHUNK_TOKENS)))


def block_tokens_for(dtype: torch.dtype) -> int:
    """Return how many tokens are loaded at a time; not measured on a card yet."""
    return 32 if dtype == torch.float32 else 64


def attend_decodes(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    table: PageTable,
    rows: torch.Tensor,
    out: torch.Tensor,
    num_splits: int,
) -> None:
    """Write the attention of q's `rows` (B,) int32 into the same rows of `out` (T, H, D).

    q is (T, H, D), pools (P, Hkv, S, D); the tokens' own k and v are stored already.
    """
    requests = len(rows)
    if not requests:
        return
    _, heads, dim = q.shape
    _, kv_heads, page_size, _ = k_pool.shape
    block = block_tokens_for(q.dtype)
    is_split = num_splits > 1
    partial = (
        q.new_empty((requests, heads, num_splits, dim), dtype=torch.float32) if is_split else q
    )
    logs = q.new_empty((requests, heads, num_splits), dtype=torch.float32) if is_split else q
    chosen = {
        "min_chunk": MIN_CHUNK_TOKENS,
        "block_tokens": block,
        "dim_block": padded(dim, MIN_ROWS),
    }
    decode_kernel[(requests, kv_heads, num_splits)](
        q,
        k_pool,
        v_pool,
        table.pos,
        table.first_page,
        table.pages,
        rows,
        out,
        partial,
        logs,
        math.log2(math.e) / math.sqrt(dim),
        num_splits,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        page_size=page_size,
        is_split=is_split,
        group_block=padded(heads // kv_heads, MIN_ROWS),
        **chosen,
        # float32 has no tensor cores to multiply it exactly: more threads, or registers run out.
        num_warps=8 if q.dtype == torch.float32 else 4,
        num_stages=3,
    )
    if is_split:
        join_kernel[(requests, heads)](
            partial,
            logs,
            table.pos,
            rows,
            out,
            num_splits,
            num_heads=heads,
            head_dim=dim,
            splits_block=MAX_SPLITS,
            **chosen,
        )

"""The gate of a Llama's feed-forward layer: one launch, and the gate's silu is never written.

SwiGLU after Shazeer 2020 (arXiv 2002.05202).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def silu_mul_kernel(
    gate_up,  # (T, 2 * ffn), contiguous: gates, then ups
    out,  # (T, ffn), contiguous
    ffn: tl.constexpr,
    block: tl.constexpr,
):
    """One program a row and a run of `block` columns. Equals `F.silu(gate) * up`, rounded once."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    is_inside = at < ffn
    gate = tl.load(gate_up + row * 2 * ffn + at, mask=is_inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * ffn + ffn + at, mask=is_inside, other=0.0).to(tl.float32)
    product = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * ffn + at, product.to(out.dtype.element_ty), mask=is_inside)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up (T, ffn) of gate_up (T, 2 * ffn)."""
    rows, ffn = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, ffn)
    if rows:
        silu_mul_kernel[(rows, triton.cdiv(ffn, BLOCK))](gate_up, out, ffn=ffn, block=BLOCK)
    return out

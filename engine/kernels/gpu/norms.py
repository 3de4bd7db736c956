"""RMS norm of the residual stream, fused with the addition that comes before it.

One launch where torch takes six, at sizes where a launch costs more than its arithmetic. RMSNorm
after Zhang and Sennrich 2019 (arXiv 1910.07467).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.gpu.page_table import padded


@triton.jit
def add_norm_kernel(
    x,  # (T, columns) fp32, contiguous; becomes x + y where has_y
    y,  # (T, columns) in the model's dtype, contiguous
    weight,  # (columns,)
    out,  # (T, columns) in the model's dtype, contiguous
    eps,
    columns: tl.constexpr,
    has_y: tl.constexpr,
    block: tl.constexpr,
):
    """One program a row.

    Equals `x += y; (x * rsqrt(x.square().mean(-1) + eps) * weight).to(dtype)`.
    """
    at = tl.arange(0, block)
    is_inside = at < columns
    row = tl.program_id(0).to(tl.int64) * columns + at
    values = tl.load(x + row, mask=is_inside, other=0.0)
    if has_y:
        values += tl.load(y + row, mask=is_inside, other=0.0).to(tl.float32)
        tl.store(x + row, values, mask=is_inside)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, axis=0) / columns + eps)
    factor = tl.load(weight + at, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(out + row, (values * scale * factor).to(out.dtype.element_ty), mask=is_inside)


def add_norm(
    x: torch.Tensor, y: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Add y to x (T, columns) in place, if there is a y; return x normed, in weight's dtype."""
    rows, columns = x.shape
    out = torch.empty_like(x, dtype=weight.dtype)
    if rows:
        block = padded(columns)
        add_norm_kernel[(rows,)](
            x,
            x if y is None else y,
            weight,
            out,
            eps,
            columns=columns,
            has_y=y is not None,
            block=block,
            num_warps=8 if block >= 2048 else 4,
        )
    return out

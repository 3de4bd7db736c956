"""A linear layer in torch, in the fastest form the device offers; y = x W^T.

On a CPU, weights are packed once for oneDNN: 1.2 to 3 times faster than `F.linear` at 1 to 32 rows.
The packing operators are private to torch, so they are tried once and done without if they fail.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)

from engine.log import get_logger

log = get_logger()

PACK_ROWS_HINT = 16  # one packing serves all row counts; measured at 1, 8, 32 and 512


class Linear:
    """Owns a weight (n, k), packed where that helps. Not a module: nothing here is trained."""

    def __init__(self, weight: torch.Tensor) -> None:
        """Take over `weight`."""
        self.assign(weight)

    def assign(self, weight: torch.Tensor) -> None:
        """Replace the weight by one of the same shape."""
        self._is_packed = weight.device.type == "cpu" and can_pack(weight.dtype)
        self._weight = _pack(weight) if self._is_packed else weight.contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map x (T, k) to (T, n)."""
        if self._is_packed:
            return _packed_linear(x, self._weight)
        return F.linear(x, self._weight)


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Try the packing operators on a small layer; False, with the reason logged, if they fail."""
    try:
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        with torch.no_grad():
            weight = torch.arange(64 * 32).view(64, 32).to(dtype) / 1024
            x = torch.ones(3, 32, dtype=dtype)
            found, expected = _packed_linear(x, _pack(weight)), F.linear(x, weight)
    except (AttributeError, RuntimeError) as error:
        log.warning("packed linears unavailable", dtype=str(dtype), detail=str(error)[:500])
        return False
    return bool(torch.allclose(found.float(), expected.float(), rtol=0.02))


def _pack(weight: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS_HINT)
    return packed


def _packed_linear(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return y

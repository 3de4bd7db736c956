"""A linear layer in torch, in the fastest form the device offers; y = x W^T + b.

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
    """Owns a weight (n, k), packed where that helps, and a bias (n,) if there is one.

    Not a module: nothing here is trained.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Take over `weight` and `bias`."""
        self.assign(weight, bias)

    def assign(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Replace weight and bias by ones of the same shapes."""
        self._bias = bias
        self._is_packed = weight.device.type == "cpu" and can_pack(weight.dtype)
        self._weight = _pack(weight) if self._is_packed else weight.contiguous()

    def dense(self) -> torch.Tensor:
        """Return the weight (n, k) as it was given."""
        return self._weight.to_dense() if self._is_packed else self._weight

    @property
    def bias(self) -> torch.Tensor | None:
        """The bias (n,)."""
        return self._bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map x (T, k) to (T, n)."""
        if self._is_packed:
            return _packed_linear(x, self._weight, self._bias)
        return F.linear(x, self._weight, self._bias)


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Try the packing operators on a small layer; False, with the reason logged, if they fail."""
    try:
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        with torch.no_grad():
            weight = torch.arange(64 * 32).view(64, 32).to(dtype) / 1024
            x = torch.ones(3, 32, dtype=dtype)
            bias = torch.arange(64).to(dtype) / 64
            found, expected = _packed_linear(x, _pack(weight), bias), F.linear(x, weight, bias)
    except (AttributeError, RuntimeError) as error:
        log.warning("packed linears unavailable", dtype=str(dtype), detail=str(error)[:500])
        return False
    return bool(torch.allclose(found.float(), expected.float(), rtol=0.02))


def _pack(weight: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS_HINT)
    return packed


def _packed_linear(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return y

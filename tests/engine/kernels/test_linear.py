"""Packed linears against torch's own, and doing without them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from structlog.testing import capture_logs

from engine.kernels import linear
from engine.kernels.linear import Linear, can_pack


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 7, 33])
@torch.inference_mode()
def test_a_linear_is_torchs_linear(dtype: torch.dtype, rows: int) -> None:
    weight, x = torch.randn(48, 32).to(dtype), torch.randn(rows, 32).to(dtype)
    layer = Linear(weight.clone())
    torch.testing.assert_close(layer(x), F.linear(x, weight), rtol=0.02, atol=0.02)
    other = torch.randn(48, 32).to(dtype)
    layer.assign(other.clone())
    torch.testing.assert_close(layer(x), F.linear(x, other), rtol=0.02, atol=0.02)
    bias = torch.randn(48).to(dtype)
    expected = F.linear(x, weight, bias)
    torch.testing.assert_close(Linear(weight, bias)(x), expected, rtol=0.02, atol=0.02)


@torch.inference_mode()
def test_without_the_packing_operators_a_linear_still_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(weight: torch.Tensor) -> torch.Tensor:
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute")

    monkeypatch.setattr(linear, "_pack", gone)
    can_pack.cache_clear()
    try:
        with capture_logs() as logs:
            layer = Linear(torch.eye(16))
        assert [line["event"] for line in logs] == ["packed linears unavailable"]
        x = torch.randn(3, 16)
        assert torch.equal(layer(x), x)
    finally:
        can_pack.cache_clear()

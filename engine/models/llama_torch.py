"""Llama and Qwen in torch operators: any device, any CPU. The kernels are compared with it.

The residual stream is fp32, as in the compiled library; linears and KV are in the model's dtype.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from numpy.typing import NDArray

from engine.kernels.linear import Linear
from engine.kernels.paged_attention import (
    AttentionPlan,
    DecodeParts,
    ExtendPart,
    attend,
    store_kv,
)
from engine.memory.device_pool import DevicePool
from engine.memory.kv_layout import KVLayout
from engine.models.base import TensorSource
from engine.models.config import ModelConfig
from engine.models.llama import (
    LayerWeights,
    TopWeights,
    layer_weights,
    named_layer,
    named_top,
    top_weights,
)
from engine.models.rope import rope_tables
from engine.models.step_inputs import StepInputs


class LlamaTorch:
    """A `StepModel`."""

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, page_size: int, device: torch.device
    ) -> None:
        """Prepare for weights on `device`."""
        self._config = config
        self._dtype = dtype
        self._device = device
        self.kv_layout = KVLayout(
            config.num_kv_heads, config.head_dim, page_size, dtype, is_interleaved=False
        )
        cos, sin = rope_tables(config, config.context_len)
        self._cos, self._sin = cos.to(device), sin.to(device)  # (context, D/2)
        self._layers: list[_Layer] = []
        self._pool: DevicePool | None = None

    def load(self, source: TensorSource) -> None:
        """Take the weights."""
        top = top_weights(source, self._config, self._dtype)
        self._embed = top.embed.to(self._device)
        self._norm = top.norm.to(self._device)
        head = self._embed if self._config.is_tied else top.head.to(self._device)
        self._head = Linear(head)
        self._layers = [
            _Layer(layer_weights(source, self._config, index, self._dtype), self._device)
            for index in range(self._config.num_layers)
        ]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor under its name, on the CPU, from what is computed with."""
        c = self._config
        head = self._embed if c.is_tied else self._head.dense()
        found = list(named_top(TopWeights(self._embed, self._norm, head), c))
        for name, tensor in found:
            yield name, tensor.cpu()
        for index, layer in enumerate(self._layers):
            for name, tensor in named_layer(layer.weights(), c, index):
                yield name, tensor.cpu()

    def bind(self, pool: DevicePool) -> None:
        """Use `pool` from now on."""
        assert pool.layout == self.kv_layout, f"{pool.layout} != {self.kv_layout}"
        self._pool = pool

    def unbind(self) -> None:
        """Let go of the pool."""
        self._pool = None

    def greedy(self, inputs: StepInputs) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the most likely token of each row (R,), and whether its logits are finite."""
        logits, is_finite = self.logits(self.hidden(inputs))
        if not len(inputs.rows):
            return np.empty(0, np.int64), is_finite
        return logits.argmax(dim=1).cpu().numpy(), is_finite

    def logits(self, hidden: torch.Tensor) -> tuple[torch.Tensor, NDArray[np.bool_]]:
        """Return fp32 logits (R, V), and which rows are all finite."""
        if not hidden.shape[0]:
            return hidden.new_empty(0, self._config.vocab_size).float(), np.empty(0, np.bool_)
        logits = self._head(hidden).float()  # (R, V)
        low, high = logits.aminmax(dim=1)  # both are NaN where a logit is
        is_finite: NDArray[np.bool_] = (low.isfinite() & high.isfinite()).cpu().numpy()
        return logits, is_finite

    def hidden(self, inputs: StepInputs) -> torch.Tensor:
        """Return the rows' state after the last norm (R, hidden)."""
        pool = self._pool
        assert pool is not None, "bind a pool first"
        plan = make_plan(inputs, self.kv_layout.page_size, self._device)
        pos = self._send(inputs.pos)
        cos, sin = self._cos[pos][:, None], self._sin[pos][:, None]  # (T, 1, D/2)
        x = self._embed[self._send(inputs.ids)].float()  # (T, hidden)
        for index, layer in enumerate(self._layers):
            k_pool, v_pool = pool.k[index], pool.v[index]
            q, k, v = (
                layer.qkv(self._rms_norm(x, layer.norm1))
                .view(len(pos), -1, self._config.head_dim)
                .split([self._config.num_heads, *[self._config.num_kv_heads] * 2], dim=1)
            )
            if layer.q_norm is not None and layer.k_norm is not None:
                q, k = self._rms_norm(q, layer.q_norm), self._rms_norm(k, layer.k_norm)
            store_kv(rotate(k, cos, sin), v, k_pool, v_pool, plan)
            y = attend(rotate(q, cos, sin), k_pool, v_pool, plan)  # (T, H, D)
            x += layer.o(y.view(len(pos), -1))
            gate, up = layer.gate_up(self._rms_norm(x, layer.norm2)).chunk(2, dim=1)
            x += layer.down(F.silu(gate) * up)  # (T, hidden)
        return self._rms_norm(x[self._send(inputs.rows)], self._norm)

    def _rms_norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x = x.float()
        scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + self._config.rms_norm_eps)
        return (x * scale * weight.float()).to(self._dtype)

    def _send(self, array: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)


class _Layer:
    def __init__(self, weights: LayerWeights, device: torch.device) -> None:
        self.norm1 = weights.norm1.to(device)
        self.norm2 = weights.norm2.to(device)
        self.qkv = Linear(weights.qkv.to(device), _on(weights.qkv_bias, device))
        self.o = Linear(weights.o.to(device))
        self.gate_up = Linear(weights.gate_up.to(device))
        self.down = Linear(weights.down.to(device))
        self.q_norm = _on(weights.q_norm, device)
        self.k_norm = _on(weights.k_norm, device)

    def weights(self) -> LayerWeights:
        """The layer's tensors, unpacked."""
        return LayerWeights(
            norm1=self.norm1,
            qkv=self.qkv.dense(),
            o=self.o.dense(),
            norm2=self.norm2,
            gate_up=self.gate_up.dense(),
            down=self.down.dense(),
            qkv_bias=self.qkv.bias,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
        )


def _on(tensor: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(device)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x (T, heads, D) by fp32 tables (T, 1, D/2); returns x's dtype."""
    a, b = x.float().chunk(2, dim=-1)  # (T, heads, D/2) each
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def make_plan(inputs: StepInputs, page_size: int, device: torch.device) -> AttentionPlan:
    """Work out, once for all layers, where tokens lie and what they see."""
    lengths = np.diff(inputs.start)
    part_of = np.repeat(np.arange(len(lengths)), lengths)  # (T,)
    page_of = inputs.pages[inputs.first_page[part_of] + inputs.pos // page_size]
    extends = [_extend_part(inputs, int(r), page_size, device) for r in np.flatnonzero(lengths > 1)]
    ones = np.flatnonzero(lengths == 1)
    return AttentionPlan(
        page_of_token=torch.from_numpy(page_of.astype(np.int64)).to(device),
        slot_of_token=torch.from_numpy(inputs.pos % page_size).to(device),
        decodes=_decode_parts(inputs, ones, page_size, device) if len(ones) else None,
        extends=extends,
    )


def _extend_part(inputs: StepInputs, part: int, page_size: int, device: torch.device) -> ExtendPart:
    rows = slice(int(inputs.start[part]), int(inputs.start[part + 1]))
    context = int(inputs.pos[rows.stop - 1]) + 1
    first = inputs.first_page[part]
    pages = inputs.pages[first : first + -(-context // page_size)]
    pos = torch.from_numpy(inputs.pos[rows]).to(device)
    visible = torch.arange(context, device=device) <= pos[:, None]  # (tokens, context)
    return ExtendPart(rows, torch.from_numpy(pages.astype(np.int64)).to(device), visible)


def _decode_parts(
    inputs: StepInputs, parts: NDArray[np.int64], page_size: int, device: torch.device
) -> DecodeParts:
    rows = inputs.start[parts]
    pos = inputs.pos[rows]
    width = int(pos.max()) // page_size + 1
    # A short part's row is filled up with its own pages' neighbours; `visible` hides them.
    at = inputs.first_page[parts][:, None] + np.arange(width)  # (B, W)
    pages = inputs.pages[np.minimum(at, len(inputs.pages) - 1)].astype(np.int64)
    visible = np.arange(width * page_size) <= pos[:, None]  # (B, W * S)
    return DecodeParts(*(torch.from_numpy(array).to(device) for array in (rows, pages, visible)))

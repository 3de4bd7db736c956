"""Llama and Qwen, layer by layer: the maths once, whatever computes its operators.

On torch operators it runs on any device, and the kernels are compared with it. The residual stream
is fp32, as in the compiled library; linears and KV are in the model's dtype.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kernels.linear import Linear
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
from engine.models.operators import Operators, StepOperators
from engine.models.operators_torch import TorchOperators
from engine.models.step_inputs import StepInputs


class LlamaTorch:
    """A `StepModel`."""

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        page_size: int,
        device: torch.device,
        operators: Operators | None = None,
    ) -> None:
        """Prepare for weights on `device`; torch operators unless others are given."""
        self._config = config
        self._dtype = dtype
        self.device = device
        self.kv_layout = KVLayout(
            config.num_kv_heads, config.head_dim, page_size, dtype, is_interleaved=False
        )
        self._operators = operators or TorchOperators(config, device)
        self._layers: list[_Layer] = []
        self._pool: DevicePool | None = None

    def load(self, source: TensorSource) -> None:
        """Take the weights."""
        top = top_weights(source, self._config, self._dtype)
        self._embed = top.embed.to(self.device)
        self._norm = top.norm.to(self.device)
        head = self._embed if self._config.is_tied else top.head.to(self.device)
        self._head = Linear(head)
        self._layers = [
            _Layer(layer_weights(source, self._config, index, self._dtype), self.device)
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

    def is_bound_to(self, pool: DevicePool) -> bool:
        """It is this very pool that it computes over."""
        return self._pool is pool

    @property
    def num_layers(self) -> int:
        """Of the model."""
        return self._config.num_layers

    @property
    def pool(self) -> DevicePool:
        """What it is bound to."""
        assert self._pool is not None, "bind a pool first"
        return self._pool

    def greedy(self, inputs: StepInputs) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the most likely token of each row (R,), and whether its logits are finite."""
        hidden = self.hidden(inputs)
        if not len(inputs.rows):
            return np.empty(0, np.int64), np.empty(0, np.bool_)
        tokens, is_finite = self.choose(hidden).cpu().numpy()
        return tokens, is_finite.astype(np.bool_)

    def choose(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return, on the device, the most likely tokens and whether their rows are finite: int64
        (2, R), so that one copy brings both to the host."""
        logits = self._head(hidden)  # (R, V)
        return torch.stack((logits.argmax(dim=1), _are_finite(logits).long()))

    def logits(self, hidden: torch.Tensor) -> tuple[torch.Tensor, NDArray[np.bool_]]:
        """Return fp32 logits (R, V), and which rows are all finite."""
        if not hidden.shape[0]:
            return hidden.new_empty(0, self._config.vocab_size).float(), np.empty(0, np.bool_)
        logits = self._head(hidden).float()  # (R, V)
        is_finite: NDArray[np.bool_] = _are_finite(logits).cpu().numpy()
        return logits, is_finite

    def hidden(self, inputs: StepInputs) -> torch.Tensor:
        """Return the rows' state after the last norm (R, hidden)."""
        step = self._operators.begin(inputs, self.pool)
        return self.trunk(step)[step.rows]

    def trunk(self, step: StepOperators) -> torch.Tensor:
        """Return every token's state after the last norm (T, hidden)."""
        norms = [layer.norm1 for layer in self._layers[1:]] + [self._norm]  # after each layer
        x = self._embed[step.ids].float()  # (T, hidden)
        normed = step.norm(x, self._layers[0].norm1)
        for index, (layer, norm) in enumerate(zip(self._layers, norms, strict=True)):
            y = step.attend(layer.qkv(normed), index, layer.q_norm, layer.k_norm)  # (T, H * D)
            normed = step.add_norm(x, layer.o(y), layer.norm2)
            y = step.silu_mul(layer.gate_up(normed))  # (T, ffn)
            normed = step.add_norm(x, layer.down(y), norm)
        return normed


def _are_finite(logits: torch.Tensor) -> torch.Tensor:
    low, high = logits.aminmax(dim=1)  # both are NaN where a logit is
    return low.isfinite() & high.isfinite()  # (R,)


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

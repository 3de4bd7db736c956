"""The Llama family as plain functions of its tensors, so that a loss can be differentiated.

Dense attention over whole prompts, no pages and no cache: for training and for checks, not for
serving. `rotate` and the tensors' names are the serving model's own.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)

from engine.models.config import ModelConfig
from engine.models.llama import LayerWeights, TopWeights, layer_weights, top_weights
from engine.models.operators_torch import rotate
from engine.models.rope import rope_tables


class DenseModel:
    """Weights by name, fp32, used in place: an optimizer that changes them changes the model."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, torch.Tensor]) -> None:
        self.config = config
        self.weights = weights

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Return a weight; this makes the model a `TensorSource`."""
        return self.weights[name].to(dtype)

    def top(self) -> TopWeights:
        """Return the tensors outside the layers."""
        return top_weights(self, self.config, torch.float32)

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the state of ids (B, N) after the last norm (B, N, hidden).

        A row sees what stands before it only, so prompts are padded at their ends.
        """
        top, eps = self.top(), self.config.rms_norm_eps
        cos, sin = (table[:, None] for table in rope_tables(self.config, ids.shape[1]))
        x = F.embedding(ids, top.embed)  # (B, N, hidden)
        for index in range(self.config.num_layers):
            layer = layer_weights(self, self.config, index, torch.float32)
            x = x + self._attention(F.rms_norm(x, x.shape[-1:], layer.norm1, eps), layer, cos, sin)
            y = F.linear(F.rms_norm(x, x.shape[-1:], layer.norm2, eps), layer.gate_up)
            gate, up = y.chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        return F.rms_norm(x, x.shape[-1:], top.norm, eps)

    def _attention(
        self, x: torch.Tensor, layer: LayerWeights, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        heads, kv_heads, dim = (
            self.config.num_heads,
            self.config.num_kv_heads,
            self.config.head_dim,
        )
        qkv = F.linear(x, layer.qkv, layer.qkv_bias).view(*x.shape[:2], -1, dim)
        q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=2)  # (B, N, heads, D) each
        if layer.q_norm is not None and layer.k_norm is not None:
            q = F.rms_norm(q, (dim,), layer.q_norm, self.config.rms_norm_eps)
            k = F.rms_norm(k, (dim,), layer.k_norm, self.config.rms_norm_eps)
        q, k, v = (t.transpose(1, 2) for t in (rotate(q, cos, sin), rotate(k, cos, sin), v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return F.linear(y.transpose(1, 2).flatten(2), layer.o)

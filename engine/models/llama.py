"""The tensors of a Llama or Qwen model: names in a checkpoint, shapes, and how they are fused.

q, k and v become one weight, gate and up another, whatever then computes with them. Qwen2 adds
biases of q, k and v to a Llama's tensors, Qwen3 norms of each head's q and k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from engine.models.base import TensorSource
from engine.models.checkpoint import Checkpoint
from engine.models.config import ModelConfig
from engine.models.errors import UnexpectedTensorError

EMBED = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class TopWeights:
    """Tensors outside the layers."""

    embed: torch.Tensor  # (V, hidden)
    norm: torch.Tensor  # (hidden,)
    head: torch.Tensor  # (V, hidden); the embedding itself when tied


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Tensors of one layer."""

    norm1: torch.Tensor  # (hidden,)
    qkv: torch.Tensor  # ((H + 2 Hkv) * D, hidden)
    o: torch.Tensor  # (hidden, H * D)
    norm2: torch.Tensor  # (hidden,)
    gate_up: torch.Tensor  # (2 * ffn, hidden)
    down: torch.Tensor  # (hidden, ffn)
    qkv_bias: torch.Tensor | None = None  # ((H + 2 Hkv) * D,)
    q_norm: torch.Tensor | None = None  # (D,)
    k_norm: torch.Tensor | None = None  # (D,)


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return every tensor that the checkpoint must hold, and its shape."""
    hidden, ffn = config.hidden_size, config.ffn_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {EMBED: (config.vocab_size, hidden), NORM: (hidden,)}
    if not config.is_tied:
        shapes[HEAD] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        shapes |= {
            _name(layer, "input_layernorm"): (hidden,),
            _name(layer, "self_attn.q_proj"): (q, hidden),
            _name(layer, "self_attn.k_proj"): (kv, hidden),
            _name(layer, "self_attn.v_proj"): (kv, hidden),
            _name(layer, "self_attn.o_proj"): (hidden, q),
            _name(layer, "post_attention_layernorm"): (hidden,),
            _name(layer, "mlp.gate_proj"): (ffn, hidden),
            _name(layer, "mlp.up_proj"): (ffn, hidden),
            _name(layer, "mlp.down_proj"): (hidden, ffn),
        }
        if config.has_qkv_bias:
            for part, size in (("q", q), ("k", kv), ("v", kv)):
                shapes[_name(layer, f"self_attn.{part}_proj", "bias")] = (size,)
        if config.has_qk_norm:
            for part in ("q", "k"):
                shapes[_name(layer, f"self_attn.{part}_norm")] = (config.head_dim,)
    return shapes


def weights_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Return what the weights take as they are computed with, whatever they were stored as."""
    numbers = sum(math.prod(shape) for shape in expected_shapes(config).values())
    return numbers * int(dtype.itemsize)


def check_checkpoint(checkpoint: Checkpoint, config: ModelConfig) -> None:
    """Raise a TensorError unless the checkpoint is just what the model needs.

    Two kinds of surplus are harmless and common: tables that old releases saved, and a tied head
    that repeats the embedding.
    """
    ignored = {
        _name(layer, "self_attn.rotary_emb", "inv_freq") for layer in range(config.num_layers)
    }
    if config.is_tied and HEAD in checkpoint.names():
        ignored.add(HEAD)
    checkpoint.check(expected_shapes(config), frozenset(ignored))
    if HEAD in ignored:
        embed = checkpoint.read(EMBED, torch.float32)
        if not torch.equal(checkpoint.read(HEAD, torch.float32), embed):
            raise UnexpectedTensorError(HEAD, "tie_word_embeddings, but not the embedding")


def top_weights(source: TensorSource, config: ModelConfig, dtype: torch.dtype) -> TopWeights:
    """Read the tensors outside the layers."""
    embed = source.read(EMBED, dtype)
    head = embed if config.is_tied else source.read(HEAD, dtype)
    return TopWeights(embed, source.read(NORM, dtype), head)


def layer_weights(
    source: TensorSource, config: ModelConfig, layer: int, dtype: torch.dtype
) -> LayerWeights:
    """Read and fuse the tensors of one layer."""

    def read(*parts: str, kind: str = "weight") -> torch.Tensor:
        found = [source.read(_name(layer, part, kind), dtype) for part in parts]
        return found[0] if len(found) == 1 else torch.cat(found)

    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    return LayerWeights(
        norm1=read("input_layernorm"),
        qkv=read(*qkv),
        o=read("self_attn.o_proj"),
        norm2=read("post_attention_layernorm"),
        gate_up=read("mlp.gate_proj", "mlp.up_proj"),
        down=read("mlp.down_proj"),
        qkv_bias=read(*qkv, kind="bias") if config.has_qkv_bias else None,
        q_norm=read("self_attn.q_norm") if config.has_qk_norm else None,
        k_norm=read("self_attn.k_norm") if config.has_qk_norm else None,
    )


def named_top(top: TopWeights, config: ModelConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors outside the layers under their names: the inverse of `top_weights`."""
    yield EMBED, top.embed
    yield NORM, top.norm
    if not config.is_tied:
        yield HEAD, top.head


def named_layer(
    weights: LayerWeights, config: ModelConfig, layer: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a layer's tensors under their names: the inverse of `layer_weights`."""
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = [f"self_attn.{part}_proj" for part in "qkv"]
    fused = [
        (attention, "weight", weights.qkv, (q, kv, kv)),
        (attention, "bias", weights.qkv_bias, (q, kv, kv)),
        (["mlp.gate_proj", "mlp.up_proj"], "weight", weights.gate_up, (config.ffn_size,) * 2),
    ]
    for parts, kind, tensor, sizes in fused:
        if tensor is not None:
            for part, one in zip(parts, tensor.split(sizes), strict=True):
                yield _name(layer, part, kind), one
    single = {
        "input_layernorm": weights.norm1,
        "self_attn.o_proj": weights.o,
        "post_attention_layernorm": weights.norm2,
        "mlp.down_proj": weights.down,
        "self_attn.q_norm": weights.q_norm,
        "self_attn.k_norm": weights.k_norm,
    }
    yield from ((_name(layer, part), one) for part, one in single.items() if one is not None)


def _name(layer: int, part: str, kind: str = "weight") -> str:
    return f"model.layers.{layer}.{part}.{kind}"

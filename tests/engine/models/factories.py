"""Small random models: Hugging Face folders, and a dense forward pass to compare with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from engine.models.config import ModelConfig, parse_config
from engine.models.llama import EMBED, HEAD, NORM, expected_shapes
from engine.models.rope import rope_tables

SETTINGS: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 600,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": 100,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}


def tiny_settings(**changes: object) -> dict[str, Any]:
    return {**SETTINGS, **changes}


def tiny_config(**changes: object) -> ModelConfig:
    return parse_config(tiny_settings(**changes), frozenset({2}))


def random_weights(config: ModelConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return weights of a size that keeps activations near 1, rounded to bfloat16."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in expected_shapes(config).items():
        values = torch.randn(shape, generator=generator)
        scaled = 1 + 0.1 * values if len(shape) == 1 else values / shape[-1] ** 0.5
        if name.endswith(".bias"):
            scaled = values
        weights[name] = scaled.to(torch.bfloat16)
    return weights


class Source:
    """A `TensorSource` over a dict."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        return self._tensors[name].to(dtype)


def write_folder(
    folder: Path, settings: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(dict(tensors), folder / "model.safetensors")
    return folder


def dense_logits(
    config: ModelConfig, weights: Mapping[str, torch.Tensor], ids: list[int]
) -> torch.Tensor:
    """Return logits (T, V) of one prompt in float64: a textbook's Llama or Qwen, without pages."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    heads, kv_heads, dim, count = (
        *(config.num_heads, config.num_kv_heads),
        *(config.head_dim, len(ids)),
    )
    cos, sin = (table[:count, None].double() for table in rope_tables(config, count))

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * w[name]

    def rotate(x: torch.Tensor) -> torch.Tensor:
        a, b = x[..., : dim // 2], x[..., dim // 2 :]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    x = w[EMBED][ids]  # (T, hidden)
    future = torch.ones(count, count, dtype=torch.bool).triu(1)
    for layer in range(config.num_layers):
        at = f"model.layers.{layer}."
        h = norm(x, at + "input_layernorm.weight")
        q, k, v = (h @ w[f"{at}self_attn.{n}_proj.weight"].T for n in "qkv")
        if config.has_qkv_bias:
            q, k, v = (
                x + w[f"{at}self_attn.{n}_proj.bias"] for n, x in zip("qkv", (q, k, v), strict=True)
            )
        q, k = q.view(count, heads, dim), k.view(count, kv_heads, dim)
        if config.has_qk_norm:
            q = norm(q, at + "self_attn.q_norm.weight")
            k = norm(k, at + "self_attn.k_norm.weight")
        q, k = rotate(q), rotate(k).repeat_interleave(heads // kv_heads, 1)
        v = v.view(count, kv_heads, dim).repeat_interleave(heads // kv_heads, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / dim**0.5
        probs = scores.masked_fill(future, float("-inf")).softmax(-1)
        y = torch.einsum("hqk,khd->qhd", probs, v).reshape(count, -1)
        x = x + y @ w[at + "self_attn.o_proj.weight"].T
        h = norm(x, at + "post_attention_layernorm.weight")
        gate, up = (h @ w[f"{at}mlp.{n}_proj.weight"].T for n in ("gate", "up"))
        x = x + (gate * gate.sigmoid() * up) @ w[at + "mlp.down_proj.weight"].T
    return norm(x, NORM) @ w[EMBED if config.is_tied else HEAD].T

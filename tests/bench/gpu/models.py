"""Models to load a card with: shapes of real ones, weights by chance, and folders of them.

Speed does not depend on what the numbers are; memory and arithmetic are those of the real model.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from engine.models.config import ModelConfig, parse_config
from engine.models.llama import expected_shapes

CONTEXT = 16_384


def settings(hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, **more: Any) -> Any:
    """A config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "vocab_size": 128_256,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
        **more,
    }


SHAPES: dict[str, Any] = {
    "tiny": settings(64, 96, 2, 4, 2, head_dim=16, vocab_size=40_960),  # the benches draw to 40,000
    "135m": settings(576, 1536, 30, 9, 3, head_dim=64, vocab_size=49_152),  # SmolLM2's
    "1b": settings(2048, 8192, 16, 32, 8, head_dim=64),  # Llama 3.2's
    "8b": settings(4096, 14_336, 32, 32, 8, head_dim=128, tie_word_embeddings=False),  # Llama 3.1's
}


def config_of(shape: str) -> ModelConfig:
    return parse_config(SHAPES[shape], frozenset({2}))


@dataclass
class RandomSource:
    """A `TensorSource`: one run of normal numbers, over and over; drawing billions would take
    minutes. Scaled so that activations stay near 1."""

    config: ModelConfig
    seed: int = 0

    def __post_init__(self) -> None:
        self._shapes = expected_shapes(self.config)
        generator = torch.Generator().manual_seed(self.seed)
        self._run = torch.randn((1 << 20) + 7, generator=generator)

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        shape = self._shapes[name]
        if len(shape) == 1:
            return torch.ones(shape, dtype=dtype)
        run = (self._run / shape[-1] ** 0.5).to(dtype)
        size = math.prod(shape)
        return run.repeat(-(-size // len(run)))[:size].view(shape)


def make_folder(folder: Path, shape: str, seed: int = 0) -> Path:
    """Write a Hugging Face folder; its words are w0, w1, …"""
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(shape)
    source = RandomSource(config, seed)
    tensors = {name: source.read(name, torch.bfloat16) for name in expected_shapes(config)}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(SHAPES[shape]))
    words = {f"w{index}": index for index in range(config.vocab_size)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder

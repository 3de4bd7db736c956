"""Tables of rotary embeddings: the angles by which a position turns its queries and keys.

RoPE after Su et al. 2021 (arXiv 2104.09864); "linear" divides positions (Chen et al. 2023,
arXiv 2306.15595); "llama3" slows only the low frequencies, as Llama 3.1's release does.
"""

from __future__ import annotations

import math

import torch

from engine.models.config import ModelConfig, RopeScaling


def rope_tables(config: ModelConfig, context_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin (context_len, D/2), fp32: pair i is element i and element i + D/2."""
    half = torch.arange(0, config.head_dim, 2).float() / config.head_dim  # (D/2,)
    frequencies = _scale(1.0 / config.rope_theta**half, config.rope_scaling)
    angles = torch.outer(torch.arange(context_len).float(), frequencies)  # (context_len, D/2)
    return angles.cos(), angles.sin()


def _scale(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    match scaling.kind:
        case "linear":
            return frequencies / scaling.factor
        case "llama3":
            return _scale_llama3(frequencies, scaling)
        case _:
            return frequencies


def _scale_llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Keep fast pairs, divide slow ones by the factor, and blend between the two limits."""
    turns = scaling.original_context_len * frequencies / (2 * math.pi)  # in the first context
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = ((turns - low) / (high - low)).clamp(0, 1)  # 1: fast, kept as it is
    return share * frequencies + (1 - share) * frequencies / scaling.factor

"""Reads a Hugging Face folder's settings into a typed, checked form.

Whatever the engine does not compute is refused by name here, so that no model runs nearly right.
Knows files and numbers only: no tensor, no device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.models.errors import ConfigError, ModelFileError, UnsupportedModelError

Settings = Mapping[str, Any]  # parsed JSON: each reader below checks the type it needs

ARCHITECTURES = ("LlamaForCausalLM",)
# Settings that change what a model computes, and the values that mean "not used".
MUST_BE = {
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "hidden_act": ("silu",),
    "sliding_window": (None,),
    "quantization_config": (None,),
    "compression_config": (None,),
    "partial_rotary_factor": (1, 1.0, None),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "logit_scale": (1, 1.0, None),
    "num_local_experts": (None, 0),
    "is_encoder_decoder": (False, None),
}


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched for a longer context; `kind` names the rule."""

    kind: str  # "default" | "linear" | "llama3"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_len: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model of the Llama family."""

    architecture: str
    vocab_size: int
    hidden_size: int
    ffn_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_len: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    is_tied: bool  # the head is the embedding
    eos_ids: frozenset[int]


def read_config(folder: Path) -> ModelConfig:
    """Read config.json, and generation_config.json if there is one.

    Raises ModelFileError, ConfigError or UnsupportedModelError.
    """
    settings = _read_json(folder / "config.json")
    generation = folder / "generation_config.json"
    ends = _eos_ids(settings) | (_eos_ids(_read_json(generation)) if generation.exists() else set())
    return parse_config(settings, frozenset(ends))


def parse_config(settings: Settings, eos_ids: frozenset[int]) -> ModelConfig:
    """Check the parsed config.json. Raises ConfigError or UnsupportedModelError."""
    architecture = next(iter(settings.get("architectures") or ()), None)
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError("architectures", settings.get("architectures"))
    for name, allowed in MUST_BE.items():
        if name in settings and settings[name] not in allowed:
            raise UnsupportedModelError(name, settings[name])
    heads, hidden = _count(settings, "num_attention_heads"), _count(settings, "hidden_size")
    rope = _rope_settings(settings)
    config = ModelConfig(
        architecture=architecture,
        vocab_size=_count(settings, "vocab_size"),
        hidden_size=hidden,
        ffn_size=_count(settings, "intermediate_size"),
        num_layers=_count(settings, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=_count(settings, "num_key_value_heads", heads),
        head_dim=_count(settings, "head_dim", hidden // heads),
        context_len=_count(settings, "max_position_embeddings"),
        rms_norm_eps=_positive(settings, "rms_norm_eps", 1e-6),
        rope_theta=_positive(rope, "rope_theta", 10000.0),
        rope_scaling=_rope_scaling(rope),
        is_tied=bool(settings.get("tie_word_embeddings", False)),
        eos_ids=eos_ids,
    )
    if config.num_heads % config.num_kv_heads:
        raise ConfigError("num_key_value_heads", f"{heads} heads are no multiple of it")
    if config.head_dim % 2:
        raise ConfigError("head_dim", f"{config.head_dim} is odd and cannot be rotated")
    bad_ids = [i for i in eos_ids if not 0 <= i < config.vocab_size]
    if bad_ids:
        raise ConfigError("eos_token_id", f"{bad_ids[0]} is not in the vocabulary")
    return config


def _read_json(path: Path) -> Settings:
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileError(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise ModelFileError(path, f"not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ModelFileError(path, "not a JSON object")
    return parsed


def _eos_ids(settings: Settings) -> set[int]:
    found = settings.get("eos_token_id")
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(isinstance(i, int) for i in ids):
        raise ConfigError("eos_token_id", f"{found!r} is neither a token id nor a list of them")
    return set(ids)


def _count(settings: Settings, name: str, default: int | None = None) -> int:
    found = settings.get(name)
    if found is None:
        found = default
    if not isinstance(found, int) or isinstance(found, bool) or found <= 0:
        raise ConfigError(name, f"{found!r} is not a positive whole number")
    return found


def _positive(settings: Settings, name: str, default: float) -> float:
    found = settings.get(name, default)
    if not isinstance(found, int | float) or isinstance(found, bool) or not found > 0:
        raise ConfigError(name, f"{found!r} is not a positive number")
    return float(found)


def _rope_settings(settings: Settings) -> Settings:
    """Merge the three places where releases of transformers have kept them."""
    merged = {"rope_theta": settings["rope_theta"]} if "rope_theta" in settings else {}
    for name in ("rope_scaling", "rope_parameters"):
        found = settings.get(name) or {}
        if not isinstance(found, dict):
            raise ConfigError(name, f"{found!r} is not an object")
        merged |= found
    return merged


def _rope_scaling(rope: Settings) -> RopeScaling:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if _positive(rope, "partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError("partial_rotary_factor", rope["partial_rotary_factor"])
    match kind:
        case "default":
            return RopeScaling(kind)
        case "linear":
            return RopeScaling(kind, factor=_positive(rope, "factor", 1.0))
        case "llama3":
            return RopeScaling(
                kind,
                factor=_positive(rope, "factor", 8.0),
                low_freq_factor=_positive(rope, "low_freq_factor", 1.0),
                high_freq_factor=_positive(rope, "high_freq_factor", 4.0),
                original_context_len=_count(rope, "original_max_position_embeddings", 8192),
            )
        case _:
            raise UnsupportedModelError("rope_type", kind)

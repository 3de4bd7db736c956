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
from engine.tensorfiles.errors import TensorFileError
from engine.tensorfiles.folder import read_text
from engine.tensorfiles.paths import Roots

Settings = Mapping[str, Any]  # parsed JSON: each reader below checks the type it needs

FULL, SLIDING = "full_attention", "sliding_attention"  # kinds of layers


@dataclass(frozen=True, slots=True)
class _Family:
    """What an architecture's name implies and config.json does not say."""

    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    head_dim: int | None = None  # where the settings name none; None: hidden size by heads
    has_window_switch: bool = False  # windows count only where use_sliding_window is true


ARCHITECTURES = {
    "LlamaForCausalLM": _Family(),
    "Qwen2ForCausalLM": _Family(has_qkv_bias=True, has_window_switch=True),
    "Qwen3ForCausalLM": _Family(has_qk_norm=True, head_dim=128, has_window_switch=True),
}
# Settings that change what a model computes, and the values that mean "not used".
MUST_BE = {
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "hidden_act": ("silu",),
    "use_sliding_window": (False, None),
    "use_mrope": (False, None),
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
    """A model of the Llama family, dense Qwen models among them."""

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
    has_qkv_bias: bool
    has_qk_norm: bool  # queries and keys are normed head by head, before they are rotated
    is_tied: bool  # the head is the embedding
    eos_ids: frozenset[int]


def read_config(folder: Path, roots: Roots | None = None) -> ModelConfig:
    """Read config.json, and generation_config.json if there is one; under `roots` only, if given.

    Raises ModelFileError, ConfigError or UnsupportedModelError.
    """
    settings = _read_json(folder / "config.json", roots)
    ends = _eos_ids(settings)
    generation = folder / "generation_config.json"
    if generation.exists():
        ends |= _eos_ids(_read_json(generation, roots))
    return parse_config(settings, frozenset(ends))


def parse_config(settings: Settings, eos_ids: frozenset[int]) -> ModelConfig:
    """Check the parsed config.json. Raises ConfigError or UnsupportedModelError."""
    architecture = _architecture(settings)
    family = ARCHITECTURES[architecture]
    _refuse_unsupported(settings, family)
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
        head_dim=_count(settings, "head_dim", family.head_dim or hidden // heads),
        context_len=_count(settings, "max_position_embeddings"),
        rms_norm_eps=_positive(settings, "rms_norm_eps", 1e-6),
        rope_theta=_positive(rope, "rope_theta", 10000.0),
        rope_scaling=_rope_scaling(rope),
        has_qkv_bias=family.has_qkv_bias,
        has_qk_norm=family.has_qk_norm,
        is_tied=bool(settings.get("tie_word_embeddings", False)),
        eos_ids=eos_ids,
    )
    _check(config)
    return config


def _architecture(settings: Settings) -> str:
    named = settings.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    if not isinstance(first, str) or first not in ARCHITECTURES:
        raise UnsupportedModelError("architectures", named)
    return first


def _refuse_unsupported(settings: Settings, family: _Family) -> None:
    for name, allowed in MUST_BE.items():
        if name in settings and settings[name] not in allowed:
            raise UnsupportedModelError(name, settings[name])
    if not family.has_window_switch and settings.get("sliding_window") is not None:
        raise UnsupportedModelError("sliding_window", settings["sliding_window"])
    known = (FULL, SLIDING) if family.has_window_switch else (FULL,)
    layer_types = settings.get("layer_types") or []
    if not isinstance(layer_types, list) or any(kind not in known for kind in layer_types):
        raise UnsupportedModelError("layer_types", layer_types)


def _check(config: ModelConfig) -> None:
    if config.num_heads % config.num_kv_heads:
        reason = f"{config.num_heads} heads are no multiple of it"
        raise ConfigError("num_key_value_heads", reason)
    if config.head_dim % 2:
        raise ConfigError("head_dim", f"{config.head_dim} is odd and cannot be rotated")
    bad_ids = [i for i in config.eos_ids if not 0 <= i < config.vocab_size]
    if bad_ids:
        raise ConfigError("eos_token_id", f"{bad_ids[0]} is not in the vocabulary")


def _read_json(path: Path, roots: Roots | None) -> Settings:
    try:
        parsed = json.loads(read_text(path, roots))
    except TensorFileError as error:
        raise ModelFileError(path, error.reason) from error
    except (ValueError, RecursionError) as error:
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
    for name, value in merged.items():
        if isinstance(value, dict):  # other angles for other kinds of layers
            raise UnsupportedModelError("rope_parameters", {name: value})
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

"""Settings that are read, and features that are refused by name."""

from __future__ import annotations

import json

import pytest

from engine.models.config import ModelConfig, RopeScaling, parse_config, read_config
from engine.models.errors import ConfigError, ModelFileError, UnsupportedModelError
from tests.engine.models.factories import tiny_config, tiny_settings


def test_the_packaged_models_settings_are_read(smollm2_dir) -> None:
    config = read_config(smollm2_dir)
    assert config == ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=49152,
        hidden_size=576,
        ffn_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        context_len=8192,
        rms_norm_eps=1e-5,
        rope_theta=1e5,
        rope_scaling=RopeScaling("default"),
        has_qkv_bias=False,
        has_qk_norm=False,
        is_tied=True,
        eos_ids=frozenset({2}),
    )


QWEN = {  # as published, what is not read left out
    "Qwen2.5-0.5B": {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": 896,
        "intermediate_size": 4864,
        "max_position_embeddings": 32768,
        "max_window_layers": 21,
        "num_attention_heads": 14,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "use_mrope": False,
        "use_sliding_window": False,
        "vocab_size": 151936,
        "hidden_act": "silu",
    },
    "Qwen3-0.6B": {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "max_position_embeddings": 40960,
        "max_window_layers": 28,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
}


def test_settings_of_published_qwen_models_are_read() -> None:
    small = parse_config(QWEN["Qwen2.5-0.5B"], frozenset({151645, 151643}))
    assert (small.has_qkv_bias, small.has_qk_norm, small.head_dim) == (True, False, 64)
    assert (small.rope_theta, small.is_tied) == (1e6, True)
    newer = parse_config(QWEN["Qwen3-0.6B"], frozenset({151645}))
    assert (newer.has_qkv_bias, newer.has_qk_norm, newer.head_dim) == (False, True, 128)
    silent = QWEN["Qwen3-0.6B"] | {"head_dim": None}  # its default is no share of the hidden size
    assert parse_config(silent, frozenset()).head_dim == 128


@pytest.mark.parametrize("model", sorted(QWEN))
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("use_sliding_window", True),
        ("use_mrope", True),
        ("attention_bias", True),
        ("layer_types", ["full_attention", "linear_attention"]),
        ("layer_types", [["full_attention"]]),
    ],
)
def test_what_is_not_computed_of_a_qwen_is_refused_by_name(
    model: str, name: str, value: object
) -> None:
    with pytest.raises(UnsupportedModelError) as raised:
        parse_config(QWEN[model] | {name: value}, frozenset())
    assert raised.value.feature == name


@pytest.mark.parametrize("model", sorted(QWEN))
def test_windows_that_a_qwen_does_not_use_are_no_matter(model: str) -> None:
    unused = {
        "sliding_window": 4096,
        "max_window_layers": 1,
        "layer_types": ["full_attention", "sliding_attention"],
    }
    assert parse_config(QWEN[model] | unused, frozenset()) == parse_config(QWEN[model], frozenset())


def test_angles_that_differ_by_layer_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="rope_parameters"):
        tiny_config(rope_parameters={"full_attention": {"rope_type": "default"}})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("architectures", ["GPT2LMHeadModel"]),
        ("architectures", ["Qwen3MoeForCausalLM"]),
        ("architectures", [["LlamaForCausalLM"]]),
        ("architectures", None),
        ("layer_types", ["sliding_attention"]),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("hidden_act", "gelu"),
        ("sliding_window", 4096),
        ("quantization_config", {"quant_method": "fp8"}),
        ("partial_rotary_factor", 0.5),
        ("attn_logit_softcapping", 50.0),
        ("num_local_experts", 8),
    ],
)
def test_a_feature_that_is_not_computed_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(UnsupportedModelError) as raised:
        tiny_config(**{name: value})
    assert raised.value.feature == name and raised.value.value == value


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_rope_settings_are_read_from_old_and_new_places(key: str) -> None:
    scaled = tiny_config(**{key: {"rope_type": "linear", "factor": 4.0}})
    assert scaled.rope_scaling == RopeScaling("linear", factor=4.0)
    settings = {**tiny_settings(), key: {"rope_type": "default", "rope_theta": 5e5}}
    del settings["rope_theta"]
    assert parse_config(settings, frozenset()).rope_theta == 5e5
    old = tiny_config(rope_scaling={"type": "linear", "factor": 2.0})
    assert old.rope_scaling.factor == 2.0


def test_llama3_rope_settings_are_read() -> None:
    found = tiny_config(
        rope_scaling={
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    )
    assert found.rope_scaling == RopeScaling("llama3", 32.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize("kind", ["dynamic", "yarn", "longrope"])
def test_other_rope_scaling_is_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"rope_type = '{kind}'"):
        tiny_config(rope_scaling={"rope_type": kind, "factor": 2.0})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_size", None),
        ("hidden_size", "64"),
        ("num_hidden_layers", 0),
        ("vocab_size", 1.5),
        ("num_key_value_heads", 3),
        ("head_dim", 33),
        ("rms_norm_eps", "small"),
        ("rope_theta", -1.0),
        ("rope_scaling", "linear"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as raised:
        tiny_config(**{name: value})
    assert raised.value.name == name


def test_defaults_follow_the_other_settings() -> None:
    config = tiny_config(head_dim=None, num_key_value_heads=None)
    assert config.head_dim == 16 and config.num_kv_heads == 4


def test_end_tokens_of_both_files_end_a_request(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_settings(eos_token_id=[2, 3])))
    assert read_config(tmp_path).eos_ids == {2, 3}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 4}')
    assert read_config(tmp_path).eos_ids == {2, 3, 4}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 100}')
    with pytest.raises(ConfigError, match="100 is not in the vocabulary"):
        read_config(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "<eos>"}')
    with pytest.raises(ConfigError, match="eos_token_id"):
        read_config(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_file_that_is_no_json_object_is_named(tmp_path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelFileError, match=r"config\.json"):
        read_config(tmp_path)

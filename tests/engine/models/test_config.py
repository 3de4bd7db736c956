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
        is_tied=True,
        eos_ids=frozenset({2}),
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("architectures", ["GPT2LMHeadModel"]),
        ("architectures", None),
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

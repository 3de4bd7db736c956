"""Which implementation is chosen, and that a folder is checked before it is used."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from engine.models import registry
from engine.models.config import read_config
from engine.models.errors import MissingTensorError, TensorShapeError, UnexpectedTensorError
from engine.models.llama_cpu import LlamaCPU
from engine.models.llama_torch import LlamaTorch
from engine.models.registry import Placement, load_model
from tests.engine.models.factories import random_weights, tiny_config, tiny_settings, write_folder


def load(folder: Path, ext_dir: Path | None = None, page_size: int = 16) -> object:
    placement = Placement(torch.device("cpu"), torch.float32, page_size, ext_dir)
    return load_model(folder, read_config(folder), placement).model


def tiny_folder(folder: Path, **settings: object) -> Path:
    return write_folder(folder, tiny_settings(**settings), random_weights(tiny_config(**settings)))


def test_compiled_kernels_are_used_where_they_can_be_had(tmp_path: Path, cpu_ext_dir: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no compiler")
    assert isinstance(load(tiny_folder(tmp_path), cpu_ext_dir), LlamaCPU)


def test_torch_is_used_without_a_folder_for_kernels(tmp_path: Path) -> None:
    assert isinstance(load(tiny_folder(tmp_path)), LlamaTorch)


@pytest.mark.parametrize(
    ("settings", "page_size", "detail"),
    [
        ({"num_attention_heads": 26}, 16, "26 heads share 2"),
        ({"head_dim": 48}, 16, "head_dim 48"),
        ({}, 8, "page_size 8"),
    ],
)
def test_torch_is_used_and_the_log_says_why_where_kernels_do_not_fit(
    tmp_path: Path, cpu_ext_dir: Path, settings: dict, page_size: int, detail: str
) -> None:
    folder = tiny_folder(tmp_path, **settings)
    with capture_logs() as logs:
        assert isinstance(load(folder, cpu_ext_dir, page_size), LlamaTorch)
    reasons = [line for line in logs if line["event"] == "cpu kernels unavailable"]
    assert len(reasons) == 1
    assert detail in reasons[0]["detail"] or reasons[0]["reason"] == "CPU lacks instructions"


def test_torch_is_used_when_the_library_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn = tmp_path / "torn.so"
    torn.write_bytes(b"\x7fELF")
    monkeypatch.setattr(registry, "build_library", lambda *_: torn)
    with capture_logs() as logs:
        assert isinstance(load(tiny_folder(tmp_path / "model"), tmp_path), LlamaTorch)
    assert logs[0]["reason"] == "library not loadable"


def test_a_folder_whose_tensors_do_not_fit_its_settings_is_refused(tmp_path: Path) -> None:
    weights = random_weights(tiny_config())
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(MissingTensorError, match=name):
        rest = {key: tensor for key, tensor in weights.items() if key != name}
        load(write_folder(tmp_path, tiny_settings(), rest))
    with pytest.raises(TensorShapeError, match=name):
        load(write_folder(tmp_path, tiny_settings(), {**weights, name: torch.ones(96, 63)}))
    with pytest.raises(UnexpectedTensorError, match=r"model\.layers\.2"):
        surplus = {**weights, "model.layers.2.mlp.up_proj.weight": weights[name].clone()}
        load(write_folder(tmp_path, tiny_settings(), surplus))


@pytest.mark.parametrize(
    ("architecture", "surplus"),
    [
        ("Qwen2ForCausalLM", "model.layers.1.self_attn.k_proj.bias"),
        ("Qwen3ForCausalLM", "model.layers.1.self_attn.q_norm.weight"),
    ],
)
def test_a_qwen_needs_the_tensors_that_a_llama_has_not(
    tmp_path: Path, architecture: str, surplus: str
) -> None:
    changes = {"architectures": [architecture]}
    weights = random_weights(tiny_config(**changes))
    load(write_folder(tmp_path, tiny_settings(**changes), weights))
    with pytest.raises(UnexpectedTensorError, match="model"):
        load(write_folder(tmp_path, tiny_settings(), weights))
    del weights[surplus]
    with pytest.raises(MissingTensorError, match=surplus):
        load(write_folder(tmp_path, tiny_settings(**changes), weights))
    wrong = random_weights(tiny_config(**changes)) | {surplus: torch.ones(7)}
    with pytest.raises(TensorShapeError, match=surplus):
        load(write_folder(tmp_path, tiny_settings(**changes), wrong))


def test_a_tied_head_may_be_saved_but_must_repeat_the_embedding(tmp_path: Path) -> None:
    settings = tiny_settings(tie_word_embeddings=True)
    weights = random_weights(tiny_config(tie_word_embeddings=True))
    embed = weights["model.embed_tokens.weight"]
    load(write_folder(tmp_path, settings, {**weights, "lm_head.weight": embed.clone()}))
    with pytest.raises(UnexpectedTensorError, match=r"lm_head\.weight"):
        load(write_folder(tmp_path, settings, {**weights, "lm_head.weight": embed + 1}))


def test_tables_that_old_releases_saved_are_ignored(tmp_path: Path) -> None:
    weights = random_weights(tiny_config())
    table = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(16)}
    load(write_folder(tmp_path, tiny_settings(), {**weights, **table}))


def test_without_triton_a_gpu_runs_on_torch_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "engine.models.llama_gpu", raising=False)
    with capture_logs() as logs:
        assert registry.gpu_model() is None
    assert logs[0]["event"] == "gpu kernels unavailable"
    assert "triton" in logs[0]["detail"]

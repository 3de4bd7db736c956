"""Small random models of each architecture beside transformers, from a folder that it saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.models.forward_batch import Part
from engine.models.step_inputs import Limits, make_inputs
from engine.runner.model_runner import ModelRunner
from tests.engine.runner.driver import Pages, generate, new_req

pytestmark = pytest.mark.filterwarnings("default")  # transformers' own are none of ours

SIZES: dict[str, Any] = {
    "vocab_size": 331,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
}
MODELS: list[tuple[str, str, dict[str, Any]]] = [
    ("Llama", "cpu", {"head_dim": 32}),
    ("Llama", "torch", {"head_dim": 32}),
    ("Qwen2", "torch", {"sliding_window": 64, "max_window_layers": 1}),
    ("Qwen3", "torch", {"head_dim": 32, "rope_parameters": {"rope_theta": 1e6}}),
]
NUM_PAGES = 100
BOUND = 1e-4
NEW_TOKENS = 20


def saved_model(folder: Path, name: str, is_tied: bool, changes: dict[str, Any]) -> Any:
    """Make a model of transformers whose biases and norms count, and save it in several shards."""
    transformers = pytest.importorskip("transformers")
    settings = {**SIZES, **changes, "tie_word_embeddings": is_tied}
    model = getattr(transformers, f"{name}ForCausalLM")(
        getattr(transformers, f"{name}Config")(**settings)
    )
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            values = torch.randn(tensor.shape, generator=generator)
            is_norm = tensor.dim() == 1 and key.endswith("weight")
            tensor.copy_(1 + 0.3 * values if is_norm else values * tensor.shape[-1] ** -0.5)
    model.eval().save_pretrained(folder, max_shard_size="40KB")
    shards = set(
        json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"].values()
    )
    assert len(shards) > 2
    return model


@pytest.mark.parametrize("is_tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(("name", "kernels", "changes"), MODELS)
def test_a_model_is_that_of_transformers(
    tmp_path: Path,
    cpu_ext_dir: Path,
    name: str,
    kernels: str,
    changes: dict[str, Any],
    is_tied: bool,
) -> None:
    model = saved_model(tmp_path, name, is_tied, changes)
    runner = ModelRunner(
        tmp_path,
        dtype="float32",
        num_pages=NUM_PAGES,
        threads=2,
        ext_dir=cpu_ext_dir if kernels == "cpu" else None,
    )
    if runner.kernels != kernels:
        pytest.skip("this machine cannot build or run the compiled kernels")
    generator = torch.Generator().manual_seed(6)
    prompts = [
        torch.randint(331, (n,), generator=generator).tolist() for n in (1, 7, 16, 17, 90, 200)
    ]
    expected = [reference(model, prompt) for prompt in prompts]
    for prompt, (tokens, logits) in zip(prompts, expected, strict=True):
        found = stepwise_logits(runner, [*prompt, *tokens[:-1]], len(prompt))
        assert (found - logits).abs().max() < BOUND
    pages = Pages(runner)
    reqs = [new_req(prompt, pages, NEW_TOKENS) for prompt in prompts]
    assert generate(runner, reqs, NEW_TOKENS, [None, 3, 5, 16, 33, 64]) == [
        tokens for tokens, _ in expected
    ]


def reference(model: Any, prompt: list[int]) -> tuple[list[int], torch.Tensor]:
    """Return transformers' greedy tokens, and the logits of every position that led to them."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(NEW_TOKENS):
            logits = model(torch.tensor([ids])).logits[0]
            ids.append(int(logits[-1].argmax()))
    return ids[len(prompt) :], logits


def stepwise_logits(runner: ModelRunner, ids: list[int], len_prompt: int) -> torch.Tensor:
    """Return logits (T, V): the prompt in uneven chunks, then a token a step."""
    limits = Limits(runner.vocab_size, NUM_PAGES, runner.page_size, runner.context_len)
    pages = Pages(runner).take(len(ids))
    found, done, sizes = [], 0, [16, 1, 30, 64]
    while done < len(ids):
        size = min(sizes[len(found) % 4], len_prompt - done) if done < len_prompt else 1
        inputs = make_inputs([Part(ids[done : done + size], done, pages, None)], limits)
        inputs = inputs.with_rows(np.arange(size))
        with torch.inference_mode():
            logits, is_finite = runner._model.logits(runner._model.hidden(inputs))
        assert is_finite.all()
        found.append(logits)
        done += size
    return torch.cat(found)

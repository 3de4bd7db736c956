"""The differentiable forward pass against a textbook's, in float64."""

from __future__ import annotations

import pytest
import torch

from engine.demo.dense import DenseModel
from tests.engine.models.factories import dense_logits, random_weights, tiny_config


@pytest.mark.parametrize("architecture", ["Llama", "Qwen2", "Qwen3"])
@pytest.mark.parametrize("is_tied", [False, True])
def test_logits_are_those_of_a_textbook_whatever_fills_the_row_up(
    architecture: str, is_tied: bool
) -> None:
    config = tiny_config(architectures=[f"{architecture}ForCausalLM"], tie_word_embeddings=is_tied)
    weights = random_weights(config)
    model = DenseModel(config, {name: tensor.float() for name, tensor in weights.items()})
    long, short = list(range(40, 90)), list(range(20, 3, -1))
    padded = short + [7] * (len(long) - len(short))
    with torch.inference_mode():
        logits = model.hidden(torch.tensor([long, padded])) @ model.top().head.T
    assert (logits[0] - dense_logits(config, weights, long)).abs().max() < 1e-4
    found = logits[1, : len(short)]
    assert (found - dense_logits(config, weights, short)).abs().max() < 1e-4


def test_every_weight_gets_a_gradient() -> None:
    config = tiny_config(architectures=["Qwen2ForCausalLM"])
    weights = {n: t.float().requires_grad_() for n, t in random_weights(config).items()}
    model = DenseModel(config, weights)
    (model.hidden(torch.tensor([[5, 6, 7]])) @ model.top().head.T).logsumexp(-1).sum().backward()
    assert [name for name, weight in weights.items() if weight.grad is None] == []

"""The packaged model beside transformers in one process: new prompts, no recording between."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from tests.engine.runner.conftest import RunnerOf
from tests.engine.runner.driver import Pages, generate, new_req

NEW_TOKENS = 24
NEAR_TIE = 0.004  # below it, the order of additions decides


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # transformers' own are none of ours
@pytest.mark.parametrize("kernels", ["cpu", "torch"])
def test_random_prompts_give_transformers_fp32_tokens_up_to_a_tie(
    runner_of: RunnerOf, smollm2_dir: Path, kernels: str
) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32)
    runner = runner_of(kernels, "float32")
    rng = random.Random(5)
    prompts = [[rng.randrange(17, 49152) for _ in range(n)] for n in (1, 15, 16, 17, 120, 333)]
    pages = Pages(runner)
    reqs = [new_req(prompt, pages, NEW_TOKENS) for prompt in prompts]
    sizes = [None, 4, 16, 5, 64, 100]
    for prompt, tokens in zip(prompts, generate(runner, reqs, NEW_TOKENS, sizes), strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
        chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        assert (logits.amax(dim=1) - chosen).max() < NEAR_TIE

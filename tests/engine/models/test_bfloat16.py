"""bfloat16 beside fp32 on 20 prompts of 48 tokens, however the step is cut: nearly always the same
token, and never one that fp32 finds much worse."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from engine.models.base import StepModel
from tests.engine.models.real_model import NUM_PAGES, Chunk, ModelOf, logits_of, models_of
from tests.engine.runner.driver import golden_cases

PROMPTS, NEW_TOKENS = 20, 48
MIN_TOP1, MAX_GAP = 0.97, 0.3
PAGE, PAGES_EACH = 16, 14
CASES = sorted(golden_cases(), key=lambda case: len(case.prompt_ids))
CUTS = ["one-shot", "batched", "chunked", "cached"]
Ids = dict[int, list[int]]
Expected = tuple[Ids, dict[int, torch.Tensor]]

kinds = pytest.mark.parametrize("kernels", ["cpu", pytest.param("torch", marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def model_of(smollm2_dir: Path, cpu_ext_dir: Path) -> ModelOf:
    return models_of(smollm2_dir, cpu_ext_dir)


@pytest.fixture(scope="module")
def expected(model_of: ModelOf) -> Expected:
    """Prompts with what fp32 says to them, greedily, and its logits of that."""
    model = model_of("cpu", "float32")
    short = [c for c in CASES if len(c.prompt_ids) + NEW_TOKENS <= PAGES_EACH * PAGE]
    ids = {r: list(short[r * len(short) // PROMPTS].prompt_ids) for r in range(PROMPTS)}
    found = [logits_of(model, [whole(ids)], ids, pages_of(ids), 1)]
    for _ in range(NEW_TOKENS - 1):
        for r in ids:
            ids[r].append(int(found[-1][r].argmax()))
        newest = [(r, len(ids[r]) - 1, len(ids[r])) for r in ids]
        found.append(logits_of(model, [newest], ids, pages_of(ids), 1))
    return ids, {r: torch.cat([step[r] for step in found]) for r in ids}


def whole(ids: Ids) -> list[Chunk]:
    return [(r, 0, len(ids[r])) for r in ids]


def pages_of(ids: Ids) -> dict[int, list[int]]:
    return {r: list(range(PAGES_EACH * r, PAGES_EACH * (r + 1))) for r in ids}


def cut(how: str, model: StepModel, ids: Ids, rng: random.Random) -> dict[int, torch.Tensor]:
    """The logits of the last 48 tokens of each, computed in that way."""
    pages = pages_of(ids)
    match how:
        case "one-shot":
            steps = [[chunk] for chunk in whole(ids)]
        case "batched":
            steps = [whole(ids)]
        case "chunked":
            steps = chunks(ids, dict.fromkeys(ids, 0), rng)
        case _:
            shared = {r: (len(ids[r]) - NEW_TOKENS) // PAGE * PAGE for r in ids}
            for r, length in shared.items():  # computed by another one that goes on otherwise
                own = [*pages[r][: length // PAGE], NUM_PAGES - 1]
                logits_of(model, [[(r, 0, length + 2)]], {r: [*ids[r][:length], 9, 9]}, {r: own})
            steps = chunks(ids, shared, rng)
    return logits_of(model, steps, ids, pages, NEW_TOKENS)


def chunks(ids: Ids, done: dict[int, int], rng: random.Random) -> list[list[Chunk]]:
    """Steps of several requests, a piece of each."""
    steps = []
    while any(done[r] < len(ids[r]) for r in ids):
        ends = {r: min(done[r] + rng.choice((1, 5, 16, 61)), len(ids[r])) for r in ids}
        steps.append([(r, done[r], ends[r]) for r in ids if done[r] < ends[r]])
        done = ends
    return steps


@kinds
@pytest.mark.parametrize("how", CUTS)
def test_bfloat16_says_what_fp32_says(
    model_of: ModelOf, expected: Expected, kernels: str, how: str
) -> None:
    ids, reference = expected
    found = cut(how, model_of(kernels, "bfloat16"), ids, random.Random(7))
    same, gaps = [], []
    for r, logits in found.items():
        assert logits.shape == reference[r].shape == (NEW_TOKENS, 49152)
        best, chosen = reference[r].amax(1), logits.argmax(1)
        same.append(chosen == reference[r].argmax(1))
        gaps.append(best - reference[r].gather(1, chosen[:, None])[:, 0])
    share, worst = torch.cat(same).float().mean().item(), torch.cat(gaps).max().item()
    assert share >= MIN_TOP1, f"top-1 equal at {share:.4f} of {PROMPTS * NEW_TOKENS}"
    assert worst <= MAX_GAP, f"a chosen token is {worst:.3f} below fp32's best"


def test_a_prompts_bits_do_not_depend_on_how_the_step_is_cut(
    model_of: ModelOf, expected: Expected
) -> None:
    ids, _ = expected
    model = model_of("cpu", "bfloat16")
    one, *others = (cut(how, model, ids, random.Random(8)) for how in CUTS)
    for other in others:
        for r in ids:
            assert torch.equal(other[r], one[r])

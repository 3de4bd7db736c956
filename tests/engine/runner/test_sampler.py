"""Choosing tokens: what is exact is compared exactly, what is random by its frequencies."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from engine.ipc.sampling import SamplingParams
from engine.models.forward_batch import SampleSpec
from engine.runner import sampler
from engine.runner.sampler import Sampler, draw_rows, is_greedy, is_plain_greedy, uniform

VOCAB = 1000  # no multiple of the sampler's block


def spec(
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    stop_ids: list[int] | None = None,
    **params: object,
) -> SampleSpec:
    return SampleSpec(SamplingParams(**params), prompt or [], output or [], stop_ids or [])


def random_logits(rows: int = 1, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def drawn(logits: torch.Tensor, count: int, **params: object) -> Counter[int]:
    """Draw from one row `count` times, at evenly spread points of the distribution."""
    points = [(i + 0.5) / count for i in range(count)]
    asked = SamplingParams(**params)
    width = sampler._sorted_tokens(asked, logits.shape[1])
    return Counter(draw_rows(logits.expand(count, -1), [asked] * count, points, width))


@pytest.mark.parametrize("params", [{"temperature": t} for t in (0.0, -0.0, 1e-7)] + [{"top_k": 1}])
def test_greedy_settings_take_the_most_likely_token(params: dict) -> None:
    logits = random_logits(5)
    chosen = Sampler(0).sample(logits, [spec(**params)] * 5)
    assert chosen == logits.argmax(dim=1).tolist()
    assert is_greedy(SamplingParams(**params)) and is_plain_greedy(spec(**params))


def test_a_tie_goes_to_the_lowest_id() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [700, 40, 900]] = 5.0
    assert Sampler(0).sample(logits, [spec(temperature=0.0)]) == [40]


def test_only_greedy_requests_that_nothing_changes_are_plain() -> None:
    assert is_plain_greedy(spec(temperature=0.0))
    assert is_plain_greedy(spec(temperature=0.0, min_new_tokens=2, output=[1, 2]))
    for changed in (
        spec(),
        spec(temperature=0.0, frequency_penalty=0.1),
        spec(temperature=0.0, presence_penalty=0.1),
        spec(temperature=0.0, repetition_penalty=1.1),
        spec(temperature=0.0, logit_bias={1: 1.0}),
        spec(temperature=0.0, min_new_tokens=1),
        SampleSpec(SamplingParams(temperature=0.0), [], [], [], return_logprob=True),
        SampleSpec(SamplingParams(temperature=0.0), [], [], [], top_logprobs_num=1),
        SampleSpec(SamplingParams(temperature=0.0), [], [], [], token_ids_logprob=[1]),
    ):
        assert not is_plain_greedy(changed)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_the_softmax_says(temperature: float) -> None:
    logits, count = random_logits(), 20000
    found = drawn(logits, count, temperature=temperature)
    probs = (logits[0].double() / temperature).softmax(0)
    assert all(abs(found[i] - count * probs[i]) < 2.01 for i in range(VOCAB))


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        ({"top_k": 3}, 3),
        ({"top_k": 2000}, 5),
        ({"top_p": 0.5}, 2),
        ({"top_p": 0.41}, 2),
        ({"top_p": 0.39}, 1),
        ({"top_p": 1e-9}, 1),
        ({"min_p": 0.45}, 3),
        ({"min_p": 1.0}, 1),
        ({"top_k": 3, "top_p": 0.95, "min_p": 0.6}, 2),
    ],
)
def test_filters_keep_the_most_likely_tokens_in_proportion(params: dict, allowed: int) -> None:
    probs = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.05])
    order = torch.tensor([300, 20, 999, 4, 0])
    logits = torch.full((1, VOCAB), -60.0)
    logits[0, order] = probs.log()
    found = drawn(logits, 4000, **params)
    kept = probs[:allowed] / probs[:allowed].sum()
    assert set(found) == set(order[:allowed].tolist())
    for token, share in zip(order.tolist(), kept.tolist(), strict=False):
        assert found[token] / 4000 == pytest.approx(share, abs=0.001)


@pytest.mark.parametrize("params", [{"top_p": 0.999}, {"min_p": 1e-4}])
def test_a_filter_that_reaches_far_gives_what_a_full_sort_gives(params: dict) -> None:
    vocab = 20000
    logits = random_logits(64, vocab) / 6
    points = [(i + 0.5) / 64 for i in range(64)]
    asked = [SamplingParams(**params)] * 64
    assert draw_rows(logits, asked, points, 1024) == draw_rows(logits, asked, points, vocab)


def test_a_temperature_near_zero_does_not_overflow() -> None:
    logits = random_logits() * 1e3
    assert Sampler(0).sample(logits, [spec(temperature=1e-6)]) == [int(logits.argmax())]


def test_no_point_draws_a_token_of_probability_zero() -> None:
    logits = torch.full((1, VOCAB), float("-inf"))
    logits[0, 3] = 0.0
    logits[0, 300] = 0.0
    extremes = [0.0, 0.5 - 2.0**-53, 0.5, 1.0 - 2.0**-53]
    for width in (0, VOCAB):
        asked = [SamplingParams()] * 4
        assert draw_rows(logits.expand(4, -1), asked, extremes, width) == [3, 3, 300, 300]


def test_a_seeded_token_depends_on_seed_and_step_and_not_on_the_batch() -> None:
    logits = random_logits(6)
    wanted = spec(seed=11, output=[1, 2, 3])
    alone = Sampler(1).sample(logits[2:3], [wanted])
    specs = [spec(), spec(top_p=0.5), wanted, spec(temperature=0.0), spec(top_k=4), spec(seed=11)]
    assert Sampler(2).sample(logits, specs)[2:3] == alone
    flat = torch.zeros(1, VOCAB)
    by_step = {Sampler(0).sample(flat, [spec(seed=11, output=[0] * n)])[0] for n in range(50)}
    by_seed = {Sampler(0).sample(flat, [spec(seed=n)])[0] for n in range(50)}
    assert len(by_step) > 40 and len(by_seed) > 40


def test_uniform_numbers_are_spread_evenly_over_seeds_and_steps() -> None:
    values = [uniform(seed, step) for seed in (-1, 0, 1, 2**70) for step in range(5000)]
    assert all(0.0 <= value < 1.0 for value in values)
    bins = Counter(int(value * 20) for value in values)
    chi2 = sum((bins[i] - 1000) ** 2 / 1000 for i in range(20))
    assert chi2 < 44  # 99.9 % of uniform samples, 19 degrees of freedom


def test_unseeded_draws_follow_the_samplers_own_seed() -> None:
    logits = torch.zeros(1, VOCAB)
    runs = []
    for seed in (5, 5, 6):
        one = Sampler(seed)
        runs.append([one.sample(logits, [spec()])[0] for _ in range(10)])
    assert runs[0] == runs[1] != runs[2]


def change(row: torch.Tensor, asked: SampleSpec) -> torch.Tensor:
    changed = row.clone()
    sampler._change_logits(changed, asked)
    return changed


def test_frequency_and_presence_penalties_count_output_tokens_only() -> None:
    row = random_logits()[0]
    found = change(row, spec([5, 6], [7, 7, 8], frequency_penalty=0.5, presence_penalty=0.25))
    expected = row.clone()
    expected[7] -= 2 * 0.5 + 0.25
    expected[8] -= 0.5 + 0.25
    torch.testing.assert_close(found, expected)


def test_repetition_penalty_counts_prompt_and_output_once_each() -> None:
    row = torch.zeros(VOCAB)
    row[5], row[6], row[7] = 2.0, -2.0, 3.0
    found = change(row, spec([5, 5, 6], [7], repetition_penalty=1.5))
    assert found[[5, 6, 7]].tolist() == pytest.approx([2 / 1.5, -3.0, 2.0])


def test_min_new_tokens_masks_stop_tokens_until_reached() -> None:
    row = random_logits()[0]
    early = change(row, spec(output=[1], stop_ids=[3, VOCAB + 5], min_new_tokens=2))
    assert early[3] == -math.inf and torch.isfinite(early).sum() == VOCAB - 1
    on_time = spec(output=[1, 2], stop_ids=[3], min_new_tokens=2, temperature=0.0)
    assert is_plain_greedy(on_time)


def test_logit_bias_is_added_and_unknown_ids_are_skipped() -> None:
    row = random_logits()[0]
    found = change(row, spec(logit_bias={3: 2.0, 4: -100.0, VOCAB: 5.0}))
    assert (found - row)[[3, 4]].tolist() == pytest.approx([2.0, -100.0], abs=1e-4)
    assert torch.equal(found[5:], row[5:])


def test_sampling_leaves_the_logits_as_they_were() -> None:
    logits = random_logits(3)
    before = logits.clone()
    Sampler(0).sample(logits, [spec(logit_bias={1: 9.0}), spec(top_p=0.5), spec()])
    assert torch.equal(logits, before)

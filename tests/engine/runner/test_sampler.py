"""Choosing tokens: what is exact is compared exactly, what is random by its frequencies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.ipc.sampling import SamplingParams
from engine.kernels.cpu.build import LibraryShape, build_library
from engine.kernels.cpu.library import CPULibrary
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


Draws = Callable[[torch.Tensor, list[SamplingParams], list[float]], list[int]]


def draws_torch(
    logits: torch.Tensor, params: list[SamplingParams], points: list[float]
) -> list[int]:
    """All with the same filters."""
    return draw_rows(logits, params, points, sampler._sorted_tokens(params[0], logits.shape[1]))


@pytest.fixture(params=["torch", "compiled"])
def library(request: pytest.FixtureRequest, cpu_ext_dir: Path) -> CPULibrary | None:
    """What draws; None is torch."""
    if request.param == "torch":
        return None
    path = build_library(cpu_ext_dir, LibraryShape(16, 64, 16))
    if path is None:
        pytest.skip("this machine cannot build the compiled kernels")
    return CPULibrary(path)


@pytest.fixture
def draws(library: CPULibrary | None) -> Draws:
    """Draw a token a row, by either."""
    if library is None:
        return draws_torch

    def compiled(
        logits: torch.Tensor, params: list[SamplingParams], points: list[float]
    ) -> list[int]:
        asked = [
            sampler._compiled(*one, logits.shape[1]) for one in zip(params, points, strict=True)
        ]
        return library.draw(logits.contiguous(), range(len(logits)), asked)

    return compiled


def drawn(draws: Draws, logits: torch.Tensor, count: int, **params: object) -> Counter[int]:
    """Draw from one row `count` times, at evenly spread points of the distribution."""
    points = [(i + 0.5) / count for i in range(count)]
    return Counter(draws(logits.expand(count, -1), [SamplingParams(**params)] * count, points))


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
def test_tokens_come_as_often_as_the_softmax_says(draws: Draws, temperature: float) -> None:
    logits, count = random_logits(), 20000
    found = drawn(draws, logits, count, temperature=temperature)
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
def test_filters_keep_the_most_likely_tokens_in_proportion(
    draws: Draws, params: dict, allowed: int
) -> None:
    probs = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.05])
    order = torch.tensor([300, 20, 999, 4, 0])
    logits = torch.full((1, VOCAB), -60.0)
    logits[0, order] = probs.log()
    found = drawn(draws, logits, 4000, **params)
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


@pytest.mark.parametrize("params", [{}, {"top_p": 0.9999}, {"min_p": 0.01}, {"top_k": 5}])
def test_no_point_draws_a_token_of_probability_zero(draws: Draws, params: dict) -> None:
    logits = torch.full((1, VOCAB), float("-inf"))
    logits[0, 3] = 0.0
    logits[0, 300] = 0.0
    extremes = [0.0, 0.5 - 2.0**-53, 0.5, 1.0 - 2.0**-53]
    asked = [SamplingParams(**params)] * 4
    assert draws(logits.expand(4, -1), asked, extremes) == [3, 3, 300, 300]
    for width in (0, VOCAB):
        assert draw_rows(logits.expand(4, -1), asked, extremes, width) == [3, 3, 300, 300]


SETTINGS = (
    *({}, {"top_k": 1}, {"top_k": 7}, {"top_k": 500}, {"top_p": 0.1}, {"top_p": 0.9}),
    *({"top_p": 0.9999}, {"min_p": 1e-6}, {"min_p": 0.2}, {"top_p": 0.95, "top_k": 50}),
    *({"top_p": 0.8, "min_p": 0.01, "top_k": 12}, {"temperature": 3.0, "top_p": 0.97}),
)


@pytest.mark.parametrize("vocab", [1, 15, 16, 255, 256, 257, 4099])
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0, 300.0])
def test_a_point_falls_where_a_full_sort_in_double_puts_it(
    draws: Draws, vocab: int, spread: float
) -> None:
    """At any size and shape of distribution. Of tokens as likely as each other, any may be it."""
    generator = torch.Generator().manual_seed(vocab)
    compared = 0
    for params in SETTINGS:
        asked = SamplingParams(**params)
        if is_greedy(asked):
            continue
        logits = torch.randn(20, vocab, generator=generator) * spread
        points = torch.rand(20, generator=generator, dtype=torch.float64).tolist()
        found = draws(logits, [asked] * 20, points)
        for row, token, point in zip(logits, found, points, strict=True):
            probs = (row.double() / asked.temperature).softmax(0)
            expected, from_edge = by_the_rules(probs, asked, point)
            if from_edge > 1e-5:
                compared += 1
                likely = float(probs[expected])
                assert float(probs[token]) == pytest.approx(likely, rel=1e-4), (params, point)
    assert compared > 150 or spread == 0.0


def by_the_rules(probs: torch.Tensor, asked: SamplingParams, point: float) -> tuple[int, float]:
    """The token at `point`, and how far that is from where another one's begins."""
    is_sorted = 0 < asked.top_k < len(probs) or asked.top_p < 1 or asked.min_p > 0
    order = probs.argsort(descending=True, stable=True) if is_sorted else torch.arange(len(probs))
    these = probs[order]
    is_kept = these >= asked.min_p * these.max()
    is_kept &= these.cumsum(0) - these <= asked.top_p + 1e-12
    if asked.top_k > 0:
        is_kept &= torch.arange(len(these)) < asked.top_k
    ends = (these * is_kept).cumsum(0) / (these * is_kept).sum()
    place = min(int((ends <= point).sum()), len(ends) - 1)
    return int(order[place]), float((ends - point).abs().min())


def test_a_seeded_token_depends_on_seed_and_step_and_not_on_the_batch(
    library: CPULibrary | None,
) -> None:
    logits = random_logits(6)
    wanted = spec(seed=11, output=[1, 2, 3])
    alone = Sampler(1, library).sample(logits[2:3], [wanted])
    specs = [spec(), spec(top_p=0.5), wanted, spec(temperature=0.0), spec(top_k=4), spec(seed=11)]
    assert Sampler(2, library).sample(logits, specs)[2:3] == alone
    flat = torch.zeros(1, VOCAB)
    by_step = {
        Sampler(0, library).sample(flat, [spec(seed=11, output=[0] * n)])[0] for n in range(50)
    }
    by_seed = {Sampler(0, library).sample(flat, [spec(seed=n)])[0] for n in range(50)}
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

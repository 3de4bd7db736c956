"""The real model: the same tokens as transformers, however a prompt reaches it."""

from __future__ import annotations

import gc
import math
import weakref

import pytest
import torch

from engine.ipc.sampling import SamplingParams
from engine.models.errors import ModelFileError
from engine.models.forward_batch import ForwardBatch, NonFiniteLogitsError, Part, SampleSpec
from engine.protocol import HostLayout
from engine.runner.model_runner import ModelRunner
from tests.engine.runner.conftest import RunnerOf
from tests.engine.runner.driver import GREEDY, Pages, Req, generate, golden_cases, new_req, step

CASES = golden_cases()
SOME = CASES[::5]
FEW = SOME[::2]
NEW_TOKENS = len(CASES[0].tokens)
both = pytest.mark.parametrize("kernels", ["cpu", "torch"])
# torch operators take long here; beside the batch, their logits are compared as well
torch_slow = pytest.mark.parametrize(
    "kernels", ["cpu", pytest.param("torch", marks=pytest.mark.slow)]
)


def tokens_of(cases: list) -> list[list[int]]:
    return [case.tokens for case in cases]


@torch_slow
def test_fp32_greedy_tokens_of_a_lone_request_are_those_of_transformers(
    runner_of: RunnerOf, kernels: str
) -> None:
    runner = runner_of(kernels, "float32")
    for case in FEW:
        req = new_req(case.prompt_ids, Pages(runner), NEW_TOKENS)
        assert generate(runner, [req], NEW_TOKENS) == [case.tokens]


# All the recorded prompts at once are a slow test.
@pytest.mark.parametrize(
    ("kernels", "every"),
    [("cpu", 2), ("torch", 10), pytest.param("cpu", 1, marks=pytest.mark.slow)],
)
def test_fp32_greedy_tokens_of_a_batch_are_those_of_transformers(
    runner_of: RunnerOf, kernels: str, every: int
) -> None:
    runner = runner_of(kernels, "float32")
    pages = Pages(runner)
    cases = CASES[1::every] if every > 1 else CASES
    reqs = [new_req(case.prompt_ids, pages, NEW_TOKENS) for case in cases]
    assert generate(runner, reqs, NEW_TOKENS) == tokens_of(cases)


@torch_slow
@pytest.mark.parametrize("sizes", [(5, 16, 33, 128, 250), (17, 64, 1, 100, 512)])
def test_fp32_greedy_tokens_of_chunked_prompts_among_decodes_are_those_of_transformers(
    runner_of: RunnerOf, kernels: str, sizes: tuple[int, ...]
) -> None:
    runner = runner_of(kernels, "float32")
    pages = Pages(runner)
    cases = sorted(SOME, key=lambda case: len(case.prompt_ids))[-5:]
    reqs = [new_req(case.prompt_ids, pages, NEW_TOKENS) for case in cases]
    assert generate(runner, reqs, NEW_TOKENS, sizes) == tokens_of(cases)


@torch_slow
def test_fp32_greedy_tokens_behind_another_requests_prefix_are_those_of_transformers(
    runner_of: RunnerOf, kernels: str
) -> None:
    runner = runner_of(kernels, "float32")
    pages = Pages(runner)
    for case in (case for case in SOME if len(case.prompt_ids) > 2 * runner.page_size):
        shared = len(case.prompt_ids) // 2 // runner.page_size * runner.page_size
        first = new_req([*case.prompt_ids[:shared], 100, 200, 300], pages, 4)
        generate(runner, [first], 4)
        own = pages.take(len(case.prompt_ids) + NEW_TOKENS - shared)
        req = Req(case.prompt_ids, first.pages[: shared // runner.page_size] + own, done=shared)
        assert generate(runner, [req], NEW_TOKENS) == [case.tokens]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_compiled_kernels_give_the_same_tokens_and_logprobs_alone_and_in_any_batch(
    runner_of: RunnerOf, dtype: str
) -> None:
    runner = runner_of("cpu", dtype)

    def run(together: bool, chunks: list[int | None]) -> list[object]:
        pages = Pages(runner)
        options = {"return_logprob": True, "top_logprobs_num": 3}
        reqs = [new_req(case.prompt_ids, pages, 8, options=options) for case in SOME]
        groups = [reqs] if together else [[req] for req in reqs]
        for group, some in zip(
            groups, [chunks] if together else [[n] for n in chunks], strict=True
        ):
            generate(runner, group, 7, some)
        return [step(runner, [req], [None])[0] for req in reqs]

    whole = run(False, [None] * len(SOME))
    assert run(True, [None] * len(SOME)) == whole
    assert run(True, [3 + 29 * n for n in range(len(SOME))]) == whole


@both
def test_a_page_can_be_moved_as_bytes(runner_of: RunnerOf, kernels: str) -> None:
    runner = runner_of(kernels, "bfloat16")
    case = next(case for case in CASES if len(case.prompt_ids) > 100)
    pages = Pages(runner)
    req = new_req(case.prompt_ids, pages, 20)
    expected = list(generate(runner, [req], 10)[0])
    moved = pages.take(len(case.prompt_ids) + 20)
    for layer in range(runner.kv_pool.num_layers):
        for side in runner.kv_pool.layer_bytes(layer):
            side[moved] = side[req.pages]
    runner.poison_pages(req.pages)
    copy = Req(case.prompt_ids, moved, done=len(case.prompt_ids) - 1)
    assert generate(runner, [copy], 10) == [expected]


@pytest.mark.parametrize("layout", list(HostLayout))
@pytest.mark.parametrize("kernels", ["cpu"])
def test_a_page_goes_to_the_host_and_back_in_every_layout(
    runner_of: RunnerOf, kernels: str, layout: HostLayout
) -> None:
    runner = runner_of(kernels, "bfloat16")
    case = next(case for case in CASES if len(case.prompt_ids) > 100)
    pages = Pages(runner)
    req = new_req(case.prompt_ids, pages, 20)
    expected = list(generate(runner, [req], 10)[0])
    _, copier = runner.host_tier(len(req.pages), layout)
    slots = list(range(len(req.pages)))[::-1]
    copier.to_host(req.pages, slots)
    runner.poison_pages(req.pages)
    moved = pages.take(len(case.prompt_ids) + 20)
    copier.to_device(slots, moved)
    copy = Req(case.prompt_ids, moved, done=len(case.prompt_ids) - 1)
    assert generate(runner, [copy], 10) == [expected]


@both
def test_released_pages_are_let_go_of_by_the_copier_too(runner_of: RunnerOf, kernels: str) -> None:
    runner = runner_of(kernels, "bfloat16")
    _, copier = runner.host_tier(4, HostLayout.PAGE_FIRST)
    pool = weakref.ref(runner.kv_pool.k[0])
    runner.release_kv()
    gc.collect()
    assert pool() is None
    runner.resume_kv()
    copier.to_host([0], [0])


@both
def test_a_poisoned_page_is_noticed_by_the_request_that_reads_it_and_no_other(
    runner_of: RunnerOf, kernels: str
) -> None:
    runner = runner_of(kernels, "bfloat16")
    pages = Pages(runner)
    reqs = [new_req(case.prompt_ids, pages, 20) for case in SOME[-4:]]
    generate(runner, reqs, 5)
    expected = [list(req.output) for req in reqs]
    alone = [Req(r.prompt, r.pages, r.done, list(r.output)) for r in reqs]
    runner.poison_pages(reqs[1].pages[:1])
    with pytest.raises(NonFiniteLogitsError) as raised:
        step(runner, reqs, [None] * 4)
    assert raised.value.parts == [1]
    assert [req.output for req in reqs] == expected
    rest = [reqs[0], *reqs[2:]]
    assert generate(runner, rest, 8) == generate(runner, [alone[0], *alone[2:]], 8)


def test_nan_is_noticed_when_logprobs_or_samples_are_wanted(runner_of: RunnerOf) -> None:
    runner = runner_of("cpu", "bfloat16")
    pages = Pages(runner)
    hot = SampleSpec(SamplingParams(seed=1), [], [], [])
    good = Part([5, 6], 0, pages.take(2), hot)
    unwritten = pages.take(18)
    bad_sample = Part([7], 17, unwritten, hot)
    bad_prompt = Part([7, 8], 16, unwritten, None, logprobs_from=0, next_id=9)
    with pytest.raises(NonFiniteLogitsError) as raised:
        runner.forward(ForwardBatch([good, bad_sample, bad_prompt]))
    assert raised.value.parts == [1, 2]


def test_a_failed_step_draws_nothing_from_the_generator(runner_of: RunnerOf) -> None:
    runner = runner_of("cpu", "bfloat16")
    pages = Pages(runner)
    hot = SampleSpec(SamplingParams(temperature=3.0), [], [], [])
    good = Part([5, 6], 0, pages.take(2), hot)
    bad = Part([7], 17, pages.take(18), hot)
    state = runner._sampler._random.getstate()
    with pytest.raises(NonFiniteLogitsError):
        runner.forward(ForwardBatch([good, bad]))
    assert runner._sampler._random.getstate() == state


@both
def test_prompt_logprobs_do_not_depend_on_chunks(runner_of: RunnerOf, kernels: str) -> None:
    runner = runner_of(kernels, "float32")
    ids = next(case.prompt_ids for case in CASES if len(case.prompt_ids) > 150)

    def score(sizes: list[int], first: int) -> list:
        taken, done, found = Pages(runner).take(len(ids)), 0, []
        for size in sizes:
            chunk = ids[done : done + size]
            next_id = ids[done + size] if done + size < len(ids) else None
            sample = None if next_id is not None else SampleSpec(GREEDY, ids, [], [])
            part = Part(chunk, done, taken, sample, first, next_id, 2, [11, 5])
            found += runner.forward(ForwardBatch([part]))[0].prompt
            done += size
        return found

    whole = score([len(ids)], 0)
    assert [record.token_id for record in whole] == ids[1:]
    assert all(math.isfinite(r.logprob) and r.logprob <= 0 for r in whole)
    assert [[i for _, i in r.chosen_ids] for r in whole] == [[11, 5]] * len(whole)
    chunked = score([40, 1, 64, len(ids) - 105], 0)
    assert [r.token_id for r in chunked] == ids[1:]
    for a, b in zip(whole, chunked, strict=True):
        assert b.logprob == pytest.approx(a.logprob, abs=1e-4)
        assert [i for _, i in b.top] == [i for _, i in a.top]
    late = score([100, len(ids) - 100], 90)
    assert [r.token_id for r in late] == ids[90:]


def test_output_logprobs_are_those_of_the_recorded_logits(runner_of: RunnerOf) -> None:
    runner = runner_of("cpu", "float32")
    case = CASES[3]
    req = new_req(case.prompt_ids, Pages(runner), 2, options={"top_logprobs_num": 5})
    output = step(runner, [req], [None])[0].output
    assert output is not None
    assert [i for _, i in output.top] == case.top_ids[0]
    gaps = [output.top[0][0] - value for value, _ in output.top]
    recorded = [case.top_logits[0][0] - value for value in case.top_logits[0]]
    assert gaps == pytest.approx(recorded, abs=1e-3)
    assert output.token_id == case.tokens[0] and output.logprob == output.top[0][0]


@both
def test_seeded_tokens_do_not_depend_on_the_batch(runner_of: RunnerOf, kernels: str) -> None:
    runner = runner_of(kernels, "float32")
    params = SamplingParams(temperature=0.9, top_p=0.95, seed=7)
    pages = Pages(runner)
    alone = new_req(CASES[2].prompt_ids, pages, 12, params=params)
    generate(runner, [alone], 12)
    others = [
        new_req(case.prompt_ids, pages, 12, params=SamplingParams(temperature=t, top_k=k))
        for case, t, k in zip(SOME, (0.0, 1.0, 2.0, 0.5), (-1, -1, 40, 5), strict=False)
    ]
    again = new_req(CASES[2].prompt_ids, pages, 12, params=params)
    generate(runner, [*others[:2], again, *others[2:]], 12)
    assert again.output == alone.output


def test_clear_kv_poisons_pages_only_when_told_to(runner_of: RunnerOf) -> None:
    runner = runner_of("cpu", "bfloat16")
    runner.kv_pool.k[0].zero_()
    runner.clear_kv()
    assert not runner.kv_pool.k[0].isnan().any()
    runner._is_poisoning = True
    try:
        runner.clear_kv()
    finally:
        runner._is_poisoning = False
    assert runner.kv_pool.k[0].isnan().all() and runner.kv_pool.v[-1].isnan().all()
    runner.empty_cache()


def test_denormal_numbers_survive_the_compiled_kernels(runner_of: RunnerOf) -> None:
    runner = runner_of("cpu", "bfloat16")
    step(runner, [new_req([5, 6, 7], Pages(runner), 1)], [None])
    tiny = torch.full((64,), 1e-39)
    assert (tiny * 1.0 != 0).all()


def test_a_runner_says_what_its_scheduler_must_know(runner_of: RunnerOf) -> None:
    runner = runner_of("cpu", "bfloat16")
    assert (runner.page_size, runner.context_len, runner.vocab_size) == (16, 8192, 49152)
    assert runner.eos_ids == {2} and runner.weights.version == "default"


def test_settings_that_make_no_sense_are_refused(smollm2_dir, tmp_path) -> None:
    with pytest.raises(ValueError, match="dtype 'float16'"):
        ModelRunner(smollm2_dir, dtype="float16", num_pages=8)
    with pytest.raises(ValueError, match="num_pages or kv_budget_bytes"):
        ModelRunner(smollm2_dir)
    with pytest.raises(ValueError, match="page_size 0"):
        ModelRunner(smollm2_dir, num_pages=8, page_size=0)
    with pytest.raises(ModelFileError, match=r"config\.json"):
        ModelRunner(tmp_path, num_pages=8)


def test_a_budget_in_bytes_buys_whole_pages(smollm2_dir) -> None:
    page_bytes = 2 * 30 * 3 * 16 * 64 * 2
    runner = ModelRunner(smollm2_dir, kv_budget_bytes=10 * page_bytes + 5, context_len=100)
    assert runner.num_pages == 10 and runner.kv_pool.page_bytes() == page_bytes
    assert runner.context_len == 100

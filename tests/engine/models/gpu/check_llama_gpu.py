"""Whole steps on Triton kernels beside the same steps in torch operators."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from engine.memory.device_pool import DevicePool
from engine.models.cuda_graph import CudaRecorder
from engine.models.decode_graphs import Recorder
from engine.models.forward_batch import Part
from engine.models.llama_gpu import LlamaGPU
from engine.models.llama_torch import LlamaTorch
from engine.models.step_inputs import Limits, StepInputs, make_inputs
from tests.engine.kernels.gpu.places import DEVICE, IS_INTERPRETED
from tests.engine.models.factories import Source, random_weights, tiny_config

PAGES, PAGE = 40, 16
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "head_dim": 24, "num_attention_heads": 6}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True}
CONFIGS = [tiny_config(), tiny_config(**QWEN3)]
if not IS_INTERPRETED:
    CONFIGS += [tiny_config(**QWEN2), tiny_config(head_dim=128, num_hidden_layers=5)]
DTYPE = torch.float32  # bfloat16's rounding would hide a wrong slot; kernels are checked in all
BOUND = 1e-4


class Rerun:
    """Launches again by calling again: what a graph does, without a card."""

    def record(self, call: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        result = call()

        def replay() -> None:
            result.copy_(call())

        return replay, result


def recorder() -> Recorder:
    return Rerun() if IS_INTERPRETED else CudaRecorder(DEVICE)


class Pair:
    """A LlamaGPU and a LlamaTorch with the same weights, each over a poisoned pool of its own."""

    def __init__(self, config=CONFIGS[0]) -> None:
        self.config = config
        self.ours = LlamaGPU(config, DTYPE, PAGE, DEVICE, recorder())
        self.reference = LlamaTorch(config, DTYPE, PAGE, DEVICE)
        self.load(0)
        for model in (self.ours, self.reference):
            model.bind(self.pool())

    def load(self, seed: int) -> None:
        for model in (self.ours, self.reference):
            model.load(Source(random_weights(self.config, seed)))

    def pool(self) -> DevicePool:
        pool = DevicePool(self.ours.kv_layout, self.config.num_layers, PAGES, DEVICE)
        pool.poison()
        return pool

    def inputs(self, *parts: Part) -> StepInputs:
        limits = Limits(self.config.vocab_size, PAGES, PAGE, self.config.context_len)
        inputs = make_inputs(parts, limits)
        return inputs.with_rows(np.arange(len(inputs.ids)))

    def agree(self, inputs: StepInputs) -> None:
        """Same logits by both ways to a step's end."""
        with torch.inference_mode():
            expected, _ = self.reference.logits(self.reference.hidden(inputs))
            found, is_finite = self.ours.logits(self.ours.hidden(inputs))
            tokens, also_finite = self.ours.greedy(inputs)
        assert is_finite.all() and also_finite.all()
        assert (found - expected).abs().max() < BOUND
        best = expected.cpu().gather(1, torch.from_numpy(tokens)[:, None])[:, 0]
        assert (expected.cpu().amax(dim=1) - best).max() < BOUND


def prompts(pair: Pair) -> StepInputs:
    """Three requests, of 19, 1 and 2 tokens."""
    rng = random.Random(1)
    ids = [rng.randrange(100) for _ in range(19)]
    return pair.inputs(
        Part(ids, 0, [3, 1], None), Part([5], 0, [2], None), Part([9, 8], 0, [7], None)
    )


def decodes(pair: Pair, at: int = 0) -> StepInputs:
    """The same three, one token further each."""
    return pair.inputs(
        Part([5 + at], 19 + at, [3, 1], None),
        Part([7 + at], 1 + at, [2], None),
        Part([9 + at], 2 + at, [7], None),
    )


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.architecture} {c.head_dim}")
def test_extends_decodes_and_both_in_one_step_are_as_in_torch(config) -> None:
    pair = Pair(config)
    pair.agree(prompts(pair))
    mixed = pair.inputs(
        Part([5], 19, [3, 1], None), Part([7, 6, 5], 1, [2], None), Part([9], 2, [7], None)
    )
    pair.agree(mixed)
    assert pair.ours.recorded == []
    last = pair.inputs(
        Part([1], 20, [3, 1], None), Part([2], 4, [2], None), Part([3], 3, [7], None)
    )
    pair.agree(last)
    assert pair.ours.recorded == [4]


def test_a_graph_serves_other_lengths_fewer_requests_and_some_rows() -> None:
    pair = Pair()
    pair.agree(prompts(pair))
    pair.agree(decodes(pair))
    fewer = pair.inputs(Part([3], 3, [7], None), Part([1], 20, [3, 1], None))
    pair.agree(pair.inputs(*[Part([4], 2, [2], None)] * 3))  # the same bucket
    pair.agree(fewer)
    assert pair.ours.recorded == [2, 4]
    some = decodes(pair, at=1).with_rows(np.array([2, 0]))
    pair.agree(some)
    nothing = decodes(pair, at=1).with_rows(np.empty(0, np.int64))
    with torch.inference_mode():
        assert pair.ours.greedy(nothing)[0].tolist() == []
        assert pair.ours.hidden(nothing).shape == (0, pair.config.hidden_size)


def test_graphs_are_recorded_anew_for_other_weights_and_another_pool() -> None:
    pair = Pair()
    pair.agree(prompts(pair))
    pair.agree(decodes(pair))
    pair.load(1)
    assert pair.ours.recorded == []
    pair.agree(decodes(pair, at=1))
    pair.ours.unbind()
    assert pair.ours.recorded == []
    for model in (pair.ours, pair.reference):
        model.bind(pair.pool())
    first = pair.inputs(*(Part([token], 0, [token], None) for token in (5, 6, 7)))
    pair.agree(first)
    assert pair.ours.recorded == [4]


def test_a_model_that_is_bound_again_to_its_pool_keeps_its_graphs() -> None:
    pair = Pair()
    pool = pair.pool()
    pair.ours.bind(pool)
    pair.agree(pair.inputs(Part([5], 0, [2], None)))
    pair.ours.bind(pool)
    assert pair.ours.recorded == [1]


def test_weights_come_back_as_they_were_given() -> None:
    pair = Pair()
    expected = random_weights(pair.config, 0)
    for name, tensor in pair.ours.tensors():
        assert torch.equal(tensor, expected[name].to(DTYPE)), name


def test_kernels_are_compiled_without_a_pool_or_a_request() -> None:
    model = LlamaGPU(CONFIGS[0], DTYPE, PAGE, DEVICE, recorder())
    model.load(Source(random_weights(CONFIGS[0])))
    model.compile_kernels()
    assert model.recorded == []


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the interpreter: it is meant
def test_an_infinite_weight_marks_the_row_that_meets_it() -> None:
    pair = Pair()
    weights = random_weights(pair.config)
    weights["model.embed_tokens.weight"][7] = float("inf")
    pair.ours.load(Source(weights))
    inputs = pair.inputs(Part([5], 0, [1], None), Part([7], 0, [2], None), Part([8], 0, [3], None))
    with torch.inference_mode():
        assert pair.ours.greedy(inputs)[1].tolist() == [True, False, True]

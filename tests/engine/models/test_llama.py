"""Both implementations against a dense float64 pass, over odd sizes and every page size."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.kernels.cpu.build import LibraryShape, build_library
from engine.kernels.cpu.library import CPULibrary
from engine.memory.device_pool import DevicePool
from engine.models.base import StepModel
from engine.models.config import ModelConfig
from engine.models.forward_batch import Part
from engine.models.llama_cpu import LlamaCPU, why_unsupported
from engine.models.llama_torch import LlamaTorch
from engine.models.step_inputs import Limits, StepInputs, make_inputs
from tests.engine.models.factories import Source, dense_logits, random_weights, tiny_config

NUM_PAGES = 90
CPU = torch.device("cpu")
BOUND = {torch.float32: 1e-4, torch.bfloat16: 0.12}  # of logits near 1


def make_model(
    kernels: str, config: ModelConfig, dtype: torch.dtype, page_size: int, ext_dir: Path
) -> StepModel:
    if kernels == "torch":
        return LlamaTorch(config, dtype, page_size, CPU)
    shape = LibraryShape(8 * dtype.itemsize, config.head_dim, page_size)
    path = build_library(ext_dir, shape)
    if path is None:
        pytest.skip("this machine cannot build or run the compiled kernels")
    return LlamaCPU(config, dtype, page_size, CPULibrary(path))


def loaded(model: StepModel, config: ModelConfig, seed: int = 0) -> StepModel:
    model.load(Source(random_weights(config, seed)))
    pool = DevicePool(model.kv_layout, config.num_layers, NUM_PAGES, CPU)
    pool.poison()
    model.bind(pool)
    return model


def inputs_of(config: ModelConfig, page_size: int, *parts: Part) -> StepInputs:
    limits = Limits(config.vocab_size, NUM_PAGES, page_size, config.context_len)
    inputs = make_inputs(parts, limits)
    return inputs.with_rows(np.arange(len(inputs.ids)))


def run(model: StepModel, inputs: StepInputs) -> torch.Tensor:
    with torch.inference_mode():
        logits, is_finite = model.logits(model.hidden(inputs))
        chosen, also_finite = model.greedy(inputs)
    assert is_finite.all() and also_finite.all()
    best = logits.gather(1, torch.from_numpy(chosen)[:, None])[:, 0]
    assert torch.equal(best, logits.amax(dim=1))
    return logits


SHAPES = [
    {},
    {"head_dim": 64, "num_attention_heads": 3, "num_key_value_heads": 3, "vocab_size": 97},
    {"head_dim": 128, "num_attention_heads": 5, "num_key_value_heads": 1, "hidden_size": 80},
    {"num_attention_heads": 12, "num_key_value_heads": 1, "tie_word_embeddings": True},
    {"rope_scaling": {"rope_type": "llama3", "original_max_position_embeddings": 64}},
]
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "num_attention_heads": 6, "hidden_size": 48}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("kernels", "changes", "page_size"),
    [
        *(("cpu", SHAPES[i], size) for i, size in enumerate((16, 32, 64, 16))),
        *(("torch", SHAPES[i], size) for i, size in enumerate((16, 32, 64, 16))),
        *((kernels, QWEN2, 16) for kernels in ("cpu", "torch")),
        *((kernels, QWEN3, 32) for kernels in ("cpu", "torch")),
    ],
)
def test_logits_of_mixed_chunks_are_those_of_a_dense_pass(
    dtype: torch.dtype, kernels: str, changes: dict, page_size: int, cpu_ext_dir: Path
) -> None:
    config = tiny_config(**changes)
    model = loaded(make_model(kernels, config, dtype, page_size, cpu_ext_dir), config)
    rng = random.Random(3)
    lengths = [1, 2, page_size, page_size + 1, 255, 257, 300]
    reqs = [[rng.randrange(config.vocab_size) for _ in range(n)] for n in lengths]
    free = rng.sample(range(NUM_PAGES), NUM_PAGES)
    pages = [[free.pop() for _ in range(-(-n // page_size))] for n in lengths]
    found: list[list[torch.Tensor]] = [[] for _ in reqs]
    done = [0] * len(reqs)
    while any(d < n for d, n in zip(done, lengths, strict=True)):
        active = [i for i, n in enumerate(lengths) if done[i] < n]
        sizes = [rng.choice((1, 3, 16, 70, 160)) for _ in active]
        parts = [
            Part(reqs[i][done[i] :][:size], done[i], pages[i], None)
            for i, size in zip(active, sizes, strict=True)
        ]
        inputs = inputs_of(config, page_size, *parts)
        logits = run(model, inputs)
        for r, i in enumerate(active):
            found[i].append(logits[inputs.start[r] : inputs.start[r + 1]])
            done[i] += len(parts[r].input_ids)
    weights = random_weights(config)
    for ids, rows in zip(reqs, found, strict=True):
        error = (torch.cat(rows) - dense_logits(config, weights, ids)).abs().max()
        assert error < BOUND[dtype], f"{len(ids)} tokens: {error}"


@pytest.mark.parametrize("kernels", ["cpu", "torch"])
def test_llama3_rope_scaling_is_applied(kernels: str, cpu_ext_dir: Path) -> None:
    config = tiny_config(**SHAPES[4])
    model = loaded(make_model(kernels, config, torch.float32, 16, cpu_ext_dir), config)
    ids = list(range(60))
    logits = run(model, inputs_of(config, 16, Part(ids, 0, [4, 3, 2, 1], None)))
    expected = dense_logits(config, random_weights(config), ids)
    assert (logits - expected).abs().max() < BOUND[torch.float32]


@pytest.mark.parametrize("kernels", ["cpu", "torch"])
@pytest.mark.parametrize("is_tied", [False, True])
def test_weights_are_replaced_in_place(kernels: str, is_tied: bool, cpu_ext_dir: Path) -> None:
    config = tiny_config(tie_word_embeddings=is_tied)
    model = loaded(make_model(kernels, config, torch.float32, 16, cpu_ext_dir), config, seed=0)
    inputs = inputs_of(config, 16, Part([5, 6, 7, 8], 0, [9], None))
    before = run(model, inputs)
    model.load(Source(random_weights(config, seed=1)))
    after = run(model, inputs)
    expected = dense_logits(config, random_weights(config, seed=1), [5, 6, 7, 8])
    assert (after - expected).abs().max() < BOUND[torch.float32]
    assert (after - before).abs().max() > 0.1


@pytest.mark.parametrize("kernels", ["cpu", "torch"])
def test_a_bad_weight_marks_the_rows_that_meet_it(kernels: str, cpu_ext_dir: Path) -> None:
    config = tiny_config()
    model = make_model(kernels, config, torch.float32, 16, cpu_ext_dir)
    weights = random_weights(config)
    weights["model.embed_tokens.weight"][7] = float("inf")
    model.load(Source(weights))
    model.bind(DevicePool(model.kv_layout, config.num_layers, NUM_PAGES, CPU))
    parts = [Part([5, 6], 0, [1], None), Part([7], 0, [2], None), Part([8], 0, [3], None)]
    inputs = inputs_of(config, 16, *parts)
    with torch.inference_mode():
        expected = [True, True, False, True]
        assert model.greedy(inputs)[1].tolist() == expected
        assert model.logits(model.hidden(inputs))[1].tolist() == expected


@pytest.mark.parametrize("kernels", ["cpu", "torch"])
def test_a_step_may_want_no_row_at_all(kernels: str, cpu_ext_dir: Path) -> None:
    config = tiny_config()
    model = loaded(make_model(kernels, config, torch.float32, 16, cpu_ext_dir), config)
    inputs = inputs_of(config, 16, Part([5, 6], 0, [1], None)).with_rows(np.empty(0, np.int64))
    with torch.inference_mode():
        assert model.greedy(inputs)[0].tolist() == []
        hidden = model.hidden(inputs)
        logits, is_finite = model.logits(hidden)
    assert hidden.shape == (0, 64) and logits.shape == (0, 100) and is_finite.shape == (0,)


def test_what_the_compiled_kernels_cannot_do_is_named() -> None:
    assert why_unsupported(tiny_config()) is None
    assert "40" in str(why_unsupported(tiny_config(hidden_size=40, head_dim=32)))
    crowded = tiny_config(num_attention_heads=13, num_key_value_heads=1)
    assert "13 heads share 1" in str(why_unsupported(crowded))
    assert why_unsupported(tiny_config(**QWEN2)) is None
    assert why_unsupported(tiny_config(**QWEN3)) is None

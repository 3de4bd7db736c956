"""Runs a real model for one rank: parts in, tokens and log probabilities out.

Owns the model, its paged KV pool and the sampler. Knows nothing of requests, queues or which page
is free; the scheduler calls it, from one thread.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from engine.memory.device_pool import DevicePool, pages_in_budget
from engine.models.config import read_config
from engine.models.forward_batch import (
    ForwardBatch,
    NonFiniteLogitsError,
    Part,
    PartResult,
    SampleSpec,
    TokenLogprobs,
)
from engine.models.llama_cpu import LlamaCPU
from engine.models.registry import Placement, load_model
from engine.models.step_inputs import Limits, StepInputs, make_inputs
from engine.runner.logprobs import Wanted, token_logprobs
from engine.runner.prompt_rows import PromptRows, find_prompt_rows
from engine.runner.sampler import Sampler, is_plain_greedy

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
PROMPT_ROWS_AT_ONCE = 64  # rows of fp32 logits held at a time: 13 MB at 49152 tokens


class ModelRunner:
    """A `Runner` over a Hugging Face folder."""

    def __init__(
        self,
        model_dir: Path,
        *,
        device: str = "cpu",
        dtype: str = "bfloat16",
        num_pages: int | None = None,
        kv_budget_bytes: int | None = None,
        page_size: int = 16,
        context_len: int | None = None,
        threads: int | None = None,
        ext_dir: Path | None = None,
        seed: int | None = None,
        is_poisoning: bool = False,
        weight_version: str = "default",
    ) -> None:
        """Load the model and allocate its KV pool: `num_pages`, or what `kv_budget_bytes` hold.

        `ext_dir` keeps compiled CPU kernels, built now if needed; None runs on torch operators.
        `threads` is set for the whole process. `context_len` shortens the model's own. `seed`
        starts the generator of unseeded requests. `is_poisoning` fills cleared pages with NaN, for
        tests. Raises ModelError for the folder and ValueError for a setting.
        """
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r} is not one of {sorted(DTYPES)}")
        if (num_pages is None) == (kv_budget_bytes is None):
            raise ValueError("give num_pages or kv_budget_bytes, and not both")
        if page_size < 1:
            raise ValueError(f"page_size {page_size}")
        if threads is not None:
            torch.set_num_threads(threads)
        config = read_config(model_dir)
        placement = Placement(torch.device(device), DTYPES[dtype], page_size, ext_dir)
        self._model = load_model(model_dir, config, placement)
        layout = self._model.kv_layout
        if num_pages is None:
            assert kv_budget_bytes is not None
            num_pages = pages_in_budget(kv_budget_bytes, layout, config.num_layers)
        self.kv_pool = DevicePool(layout, config.num_layers, num_pages, placement.device)
        self._model.bind(self.kv_pool)
        self._device = placement.device
        self._sampler = Sampler(seed)
        self._is_poisoning = is_poisoning
        self.page_size = page_size
        self.num_pages = num_pages
        self.context_len = min(context_len or config.context_len, config.context_len)
        self.vocab_size = config.vocab_size
        self.eos_ids = config.eos_ids
        self.weight_version = weight_version
        self._limits = Limits(self.vocab_size, num_pages, page_size, self.context_len)

    @property
    def kernels(self) -> str:
        """What computes a step: "cpu" for compiled kernels, else "torch"."""
        return "cpu" if isinstance(self._model, LlamaCPU) else "torch"

    def forward(self, batch: ForwardBatch) -> list[PartResult]:
        """Run one step; one result a part, in order.

        Raises NonFiniteLogitsError before anything is drawn: the same step without the named parts
        gives the others what it would have given them. Raises ValueError for a part that does not
        fit the pool, the vocabulary or the context.
        """
        parts = batch.parts
        inputs = make_inputs(parts, self._limits)
        prompt = find_prompt_rows(parts, inputs.start)
        sampling = [index for index, part in enumerate(parts) if part.sample is not None]
        specs = [part.sample for part in parts if part.sample is not None]
        with torch.inference_mode():
            if len(prompt.rows) or not all(map(is_plain_greedy, specs)):
                return self._forward_with_logits(parts, inputs, prompt, sampling, specs)
            chosen, is_finite = self._model.greedy(inputs)
        _raise_nonfinite(sampling, is_finite)
        return _results(parts, chosen.tolist(), [None] * len(specs), {})

    def _forward_with_logits(
        self,
        parts: list[Part],
        inputs: StepInputs,
        prompt: PromptRows,
        sampling: list[int],
        specs: list[SampleSpec],
    ) -> list[PartResult]:
        rows = np.concatenate((inputs.rows, prompt.rows))
        hidden = self._model.hidden(inputs.with_rows(rows))  # (R, hidden): samples, then prompts
        logits, is_finite = self._model.logits(hidden[: len(specs)])  # (samples, V)
        prompt_records, prompt_is_finite = self._prompt_logprobs(hidden[len(specs) :], prompt)
        _raise_nonfinite([*sampling, *prompt.parts], np.concatenate((is_finite, prompt_is_finite)))
        tokens = self._sampler.sample(logits, specs)
        return _results(parts, tokens, _output_logprobs(logits, tokens, specs), prompt_records)

    def _prompt_logprobs(
        self, hidden: torch.Tensor, prompt: PromptRows
    ) -> tuple[dict[int, list[TokenLogprobs]], NDArray[np.bool_]]:
        """Return records by part, and which rows were finite; a slice of rows at a time."""
        records: dict[int, list[TokenLogprobs]] = {}
        finite = [np.empty(0, np.bool_)]
        for first in range(0, len(prompt.rows), PROMPT_ROWS_AT_ONCE):
            some = slice(first, first + PROMPT_ROWS_AT_ONCE)
            logits, is_finite = self._model.logits(hidden[some])
            finite.append(is_finite)
            found = token_logprobs(logits, prompt.wanted[some])
            for part, record in zip(prompt.parts[some], found, strict=True):
                records.setdefault(part, []).append(record)
        return records, np.concatenate(finite)

    def clear_kv(self) -> None:
        """Forget all pages' contents: poison them if so configured, else leave them be."""
        if self._is_poisoning:
            self.kv_pool.poison()

    def poison_pages(self, pages: list[int]) -> None:
        """Fill `pages` with NaN, so that a read of them shows; for tests."""
        self.kv_pool.poison(pages)

    def empty_cache(self) -> None:
        """Give cached device memory back to the driver; nothing to do on a CPU."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def _raise_nonfinite(parts: list[int], is_finite: NDArray[np.bool_]) -> None:
    if not is_finite.all():
        raise NonFiniteLogitsError(sorted({parts[i] for i in np.flatnonzero(~is_finite)}))


def _output_logprobs(
    logits: torch.Tensor, tokens: list[int], specs: list[SampleSpec]
) -> list[TokenLogprobs | None]:
    outputs: list[TokenLogprobs | None] = [None] * len(specs)
    asked = [
        i
        for i, s in enumerate(specs)
        if s.return_logprob or s.top_logprobs_num or s.token_ids_logprob
    ]
    if asked:
        wanted = [
            Wanted(tokens[i], specs[i].top_logprobs_num, specs[i].token_ids_logprob) for i in asked
        ]
        some = logits[asked] if len(asked) < len(specs) else logits
        for index, record in zip(asked, token_logprobs(some, wanted), strict=True):
            outputs[index] = record
    return outputs


def _results(
    parts: list[Part],
    tokens: list[int],
    outputs: list[TokenLogprobs | None],
    prompts: dict[int, list[TokenLogprobs]],
) -> list[PartResult]:
    """Deal the samples out to the parts that asked for one."""
    samples = iter(zip(tokens, outputs, strict=True))
    results = []
    for index, part in enumerate(parts):
        token, output = next(samples) if part.sample is not None else (None, None)
        results.append(PartResult(token, output, prompts.get(index, [])))
    return results

"""Runs a real model for one rank: parts in, tokens and log probabilities out.

Owns the model, its paged KV pool and the sampler. Knows nothing of requests, queues or which page
is free; the scheduler calls it, from one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from engine.memory.device_pool import DevicePool, pages_in_budget
from engine.memory.host_pool import HostPool, PageShape
from engine.memory.page_copy import PageCopier
from engine.models.base import StepModel
from engine.models.config import read_config
from engine.models.digest import Digest, DigestingSource
from engine.models.forward_batch import (
    ForwardBatch,
    NonFiniteLogitsError,
    Part,
    PartResult,
    SampleSpec,
    TokenLogprobs,
)
from engine.models.llama_cpu import LlamaCPU
from engine.models.llama_torch import LlamaTorch
from engine.models.registry import Loaded, Placement, load_model, load_weights
from engine.models.step_inputs import Limits, StepInputs, make_inputs
from engine.protocol import HostLayout, WeightsView
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
        config = self.config = read_config(model_dir)
        placement = Placement(torch.device(device), DTYPES[dtype], page_size, ext_dir)
        if placement.device.type == "cuda":
            torch.cuda.set_device(placement.device)  # kernels are launched on the current one
        self._placement = placement
        self._loaded: Loaded | None = load_model(model_dir, config, placement)
        self.weights = view_of(self._loaded.digest, WeightsView(version="default"))
        layout = self._model.kv_layout
        if num_pages is None:
            assert kv_budget_bytes is not None
            num_pages = pages_in_budget(kv_budget_bytes, layout, config.num_layers)
        self._layout = layout
        self._pool: DevicePool | None = None
        self._copier: PageCopier | None = None
        self.num_pages = num_pages
        self.resume_kv()
        self._device = placement.device
        self.num_empty_cache = 0
        model = self._model
        self._sampler = Sampler(seed, model.library if isinstance(model, LlamaCPU) else None)
        self._is_poisoning = is_poisoning
        self.page_size = page_size
        self.context_len = min(context_len or config.context_len, config.context_len)
        self.vocab_size = config.vocab_size
        self.eos_ids = config.eos_ids
        self._limits = Limits(self.vocab_size, num_pages, page_size, self.context_len)

    @property
    def _model(self) -> StepModel:
        assert self._loaded is not None, "the weights are released"
        return self._loaded.model

    @property
    def kv_pool(self) -> DevicePool:
        """The pages, unless they are released."""
        assert self._pool is not None, "the KV cache is released"
        return self._pool

    @property
    def has_kv(self) -> bool:
        """The pages have memory."""
        return self._pool is not None

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and KV."""
        return self._placement.dtype

    # ---- weights -----------------------------------------------------------------------------

    def load(self, source: DigestingSource) -> Loaded:
        """Make a second model of the same kind, beside the one that serves; from any thread."""
        return load_weights(source, self.config, self._placement)

    def swap(self, loaded: Loaded | None, weights: WeightsView) -> Loaded | None:
        """Compute with these weights from the next step on; returns those before.

        None holds no weights: nothing may be computed until others are given.
        """
        before, self._loaded, self.weights = self._loaded, loaded, weights
        if loaded is not None and self._pool is not None:
            loaded.model.bind(self._pool)
        return before

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor that is computed with, under its name, on the CPU; from any thread."""
        return self._model.tensors()

    @property
    def digest(self) -> Digest | None:
        """The checksums of the weights as they were loaded; None while they are released."""
        return self._loaded.digest if self._loaded is not None else None

    def release_kv(self) -> None:
        """Give the pages' memory up. No page is in use."""
        self._pool = None
        if self._copier is not None:
            self._copier.unbind()
        if self._loaded is not None:
            self._loaded.model.unbind()

    def resume_kv(self) -> None:
        """Take memory for the pages again; they are empty."""
        config, device = self.config, self._placement.device
        self._pool = DevicePool(self._layout, config.num_layers, self.num_pages, device)
        if self._loaded is not None:
            self._loaded.model.bind(self._pool)
        if self._copier is not None:
            self._copier.bind(self._pool.sides())

    def host_tier(self, num_pages: int, layout: HostLayout) -> tuple[HostPool, PageCopier]:
        """A host pool for pages of this runner's, and what copies between the two."""
        kv = self._layout
        shape = PageShape(self.config.num_layers, kv.num_kv_heads, kv.side_bytes)
        host = HostPool(shape, num_pages, layout)
        self._copier = PageCopier(self.kv_pool.sides(), host)
        return host, self._copier

    @property
    def kv_kind(self) -> str:
        """How a page's numbers lie: two runners of different kinds cannot share pages."""
        kv = self._layout
        return f"{kv.dtype}-{'interleaved' if kv.is_interleaved else 'plain'}-{kv.num_kv_heads}"

    # ---- steps -------------------------------------------------------------------------------

    @property
    def kernels(self) -> str:
        """What computes a step: "cpu" for compiled kernels, "triton" on a GPU, else "torch"."""
        if isinstance(self._model, LlamaCPU):
            return "cpu"
        return "torch" if isinstance(self._model, LlamaTorch) else "triton"

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
        if self._is_poisoning and self._pool is not None:
            self.kv_pool.poison()

    def poison_pages(self, pages: list[int]) -> None:
        """Fill `pages` with NaN, so that a read of them shows; for tests."""
        self.kv_pool.poison(pages)

    def empty_cache(self) -> None:
        """Give cached device memory back to the driver; nothing to do on a CPU but to count it."""
        self.num_empty_cache += 1
        self.return_unused()

    def return_unused(self) -> None:
        """The same, uncounted: after something large was let go of. From any thread."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def view_of(digest: Digest, weights: WeightsView) -> WeightsView:
    """`weights` with what was read: checksum, size, count."""
    return msgspec.structs.replace(
        weights,
        checksum=digest.checksum(),
        bytes=digest.bytes,
        num_tensors=len(digest.tensors),
    )


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

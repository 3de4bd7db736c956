"""Drives a runner as a scheduler would, without one: requests, their pages, and steps."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.ipc.sampling import SamplingParams
from engine.models.forward_batch import ForwardBatch, Part, PartResult, SampleSpec
from engine.runner.model_runner import ModelRunner

GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True)
class Case:
    """What transformers did in fp32 with one prompt."""

    prompt_ids: list[int]
    tokens: list[int]
    top_ids: list[list[int]]
    top_logits: list[list[float]]


def golden_cases() -> list[Case]:
    path = Path(__file__).parent / "golden" / "smollm2_fp32.json"
    return [Case(**case) for case in json.loads(path.read_text())["cases"]]


class Pages:
    """Hands out pages in no order. The pool starts poisoned, so that stale reads show."""

    def __init__(self, runner: ModelRunner, seed: int = 0) -> None:
        runner.kv_pool.poison()
        self._free = random.Random(seed).sample(range(runner.num_pages), runner.num_pages)
        self._page_size = runner.page_size

    def take(self, len_tokens: int) -> list[int]:
        count = -(-len_tokens // self._page_size)
        taken, self._free = self._free[:count], self._free[count:]
        assert len(taken) == count, "the test's pool is too small"
        return taken


@dataclass
class Req:
    prompt: list[int]
    pages: list[int]
    done: int = 0  # tokens in KV
    output: list[int] = field(default_factory=list)
    params: SamplingParams = GREEDY
    options: dict[str, Any] = field(default_factory=dict)  # of SampleSpec

    def part(self, count: int | None = None) -> Part:
        """Take the next `count` tokens, or all there are."""
        ids = (self.prompt + self.output)[self.done :][:count]
        is_last = self.done + len(ids) == len(self.prompt) + len(self.output)
        spec = SampleSpec(self.params, self.prompt, self.output, [2], **self.options)
        return Part(ids, self.done, self.pages, spec if is_last else None)


def new_req(prompt: list[int], pages: Pages, new_tokens: int, **kwargs: Any) -> Req:
    return Req(prompt, pages.take(len(prompt) + new_tokens), **kwargs)


def step(
    runner: ModelRunner, reqs: Sequence[Req], counts: Iterable[int | None]
) -> list[PartResult]:
    """Run one step of all `reqs`, each with so many tokens, and note the outcome."""
    parts = [req.part(count) for req, count in zip(reqs, counts, strict=True)]
    results = runner.forward(ForwardBatch(parts))
    for req, part, result in zip(reqs, parts, results, strict=True):
        req.done += len(part.input_ids)
        assert (result.next_token is None) == (part.sample is None)
        if result.next_token is not None:
            req.output.append(result.next_token)
    return results


def generate(
    runner: ModelRunner, reqs: Sequence[Req], new_tokens: int, chunks: Sequence[int | None] = ()
) -> list[list[int]]:
    """Run all `reqs` together to `new_tokens` each; prompts of req i come in chunks[i]."""
    sizes = list(chunks) or [None] * len(reqs)
    while True:
        active = [i for i, req in enumerate(reqs) if len(req.output) < new_tokens]
        if not active:
            return [req.output for req in reqs]
        step(runner, [reqs[i] for i in active], [sizes[i] for i in active])

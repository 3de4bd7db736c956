"""The packaged model, as a test of logits needs it: a pool full of NaN, and steps by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.memory.device_pool import DevicePool
from engine.models.base import StepModel
from engine.models.config import read_config
from engine.models.forward_batch import Part
from engine.models.llama_cpu import LlamaCPU
from engine.models.registry import Placement, load_model
from engine.models.step_inputs import Limits, make_inputs

NUM_PAGES = 300
ModelOf = Callable[[str, str], StepModel]
Chunk = tuple[int, int, int]  # request, first token, last token


def models_of(folder: Path, ext_dir: Path) -> ModelOf:
    """A model by kernels ("cpu" or "torch") and number format, made once."""
    config = read_config(folder)

    @cache
    def make(kernels: str, dtype: str) -> StepModel:
        placement = Placement(
            torch.device("cpu"), getattr(torch, dtype), 16, ext_dir if kernels == "cpu" else None
        )
        model = load_model(folder, config, placement).model
        if isinstance(model, LlamaCPU) != (kernels == "cpu"):
            pytest.skip("this machine cannot build or run the compiled kernels")
        pool = DevicePool(model.kv_layout, config.num_layers, NUM_PAGES, placement.device)
        pool.poison()
        model.bind(pool)
        return model

    return make


def logits_of(
    model: StepModel,
    steps: list[list[Chunk]],
    ids: dict[int, list[int]],
    pages: dict[int, list[int]],
    count: int = 40,
) -> dict[int, torch.Tensor]:
    """Run the chunks of each step together; return the logits of the last `count` rows of each."""
    limits = Limits(49152, NUM_PAGES, 16, 8192)
    found: dict[int, list[torch.Tensor]] = {}
    for step in steps:
        parts = [Part(ids[r][first:last], first, pages[r], None) for r, first, last in step]
        inputs = make_inputs(parts, limits)
        wanted = [
            np.arange(inputs.start[n], inputs.start[n + 1])[max(0, len(ids[r]) - count - first) :]
            for n, (r, first, _) in enumerate(step)
        ]
        with torch.inference_mode():
            hidden = model.hidden(inputs.with_rows(np.concatenate(wanted)))
            logits, is_finite = model.logits(hidden)
        assert is_finite.all()
        for (r, _, _), rows in zip(step, logits.split([len(w) for w in wanted]), strict=True):
            found.setdefault(r, []).append(rows)
    return {r: torch.cat(rows) for r, rows in found.items()}

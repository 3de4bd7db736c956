"""Chooses what computes a model: compiled or Triton kernels where they serve, torch elsewhere.

The one place to touch for a new family. Called by the runner, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.kernels.cpu.build import LibraryShape, build_library
from engine.kernels.cpu.library import CPULibrary
from engine.log import get_logger
from engine.models.base import StepModel
from engine.models.checkpoint import open_checkpoint
from engine.models.config import ModelConfig
from engine.models.digest import Digest, DigestingSource
from engine.models.llama import check_checkpoint
from engine.models.llama_cpu import LlamaCPU, why_unsupported
from engine.models.llama_torch import LlamaTorch

log = get_logger()

MakeModel = Callable[[ModelConfig, torch.dtype, int, torch.device], StepModel]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and in which numbers a model runs. No `ext_dir`: torch operators only."""

    device: torch.device
    dtype: torch.dtype  # bfloat16 or float32
    page_size: int
    ext_dir: Path | None  # where compiled kernels are kept


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model with weights, and the checksums of those."""

    model: StepModel
    digest: Digest


def load_model(folder: Path, config: ModelConfig, placement: Placement) -> Loaded:
    """Return the model of `folder` with its weights. Raises ModelError."""
    with open_checkpoint(folder) as checkpoint:
        check_checkpoint(checkpoint, config)
        return load_weights(DigestingSource(checkpoint, is_checked=False), config, placement)


def load_weights(source: DigestingSource, config: ModelConfig, placement: Placement) -> Loaded:
    """Return a new model with the weights of `source`, whose names and shapes were checked."""
    model = _new_model(config, placement)
    model.load(source)
    return Loaded(model, source.digest)


def _new_model(config: ModelConfig, placement: Placement) -> StepModel:
    dtype, page_size, device = placement.dtype, placement.page_size, placement.device
    library = _cpu_library(config, placement)
    if library is not None:
        return LlamaCPU(config, dtype, page_size, library)
    make = gpu_model() if device.type == "cuda" else None
    if make is not None:
        return make(config, dtype, page_size, device)
    return LlamaTorch(config, dtype, page_size, device)


def gpu_model() -> MakeModel | None:
    """What makes a model on Triton kernels; None, with the reason logged, without triton."""
    try:
        # Here, because a CPU has no use for triton and need not have it.
        from engine.models.llama_gpu import LlamaGPU
    except ImportError as error:
        log.warning("gpu kernels unavailable", reason="triton not importable", detail=str(error))
        return None
    return LlamaGPU


def _cpu_library(config: ModelConfig, placement: Placement) -> CPULibrary | None:
    if placement.device.type != "cpu" or placement.ext_dir is None:
        return None
    problem = why_unsupported(config)
    if problem:
        log.warning("cpu kernels unavailable", reason="model not supported", detail=problem)
        return None
    bits = 8 * placement.dtype.itemsize
    shape = LibraryShape(bits, config.head_dim, placement.page_size)
    path = build_library(placement.ext_dir, shape)
    if path is None:
        return None
    try:
        return CPULibrary(path)
    except OSError as error:
        log.warning("cpu kernels unavailable", reason="library not loadable", detail=str(error))
        return None

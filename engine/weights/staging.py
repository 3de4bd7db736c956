"""From an operation to weights that are ready to be swapped in: open, check, read, verify, keep.

Everything in here runs beside serving, on a thread of its own, and touches nothing that serves.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import torch

from engine.log import get_logger
from engine.memory.available import available_bytes
from engine.models.config import ModelConfig
from engine.models.digest import Digest, DigestingSource
from engine.models.errors import ModelError
from engine.models.llama import weights_bytes
from engine.protocol import WeightsView
from engine.tensorfiles.errors import TensorFileError
from engine.tensorfiles.text import plain
from engine.weights.background import Job
from engine.weights.errors import WeightsError
from engine.weights.sources import Opened

log = get_logger()

# Errors whose text is for people; any other one is a fault of ours.
TOLD = (ModelError, TensorFileError, WeightsError, OSError, MemoryError)
_SPARE = 1.1  # memory asked for beyond the weights themselves


class Loader(Protocol):
    """What makes a model of tensors: a ModelRunner."""

    @property
    def config(self) -> ModelConfig:
        """What every checkpoint must describe."""

    @property
    def dtype(self) -> torch.dtype:
        """In which numbers the model computes."""

    def load(self, source: DigestingSource) -> Any:
        """A second model. Any: the runner's own form of one."""


@dataclass(slots=True)
class Staged:
    """A model that is not served yet, and what is known of its weights."""

    model: Any  # the runner's own form; nobody else looks into it
    digest: Digest
    weights: WeightsView


def stage(
    job: Job[Staged],
    opened: AbstractContextManager[Opened],
    loader: Loader,
    weights: WeightsView,
    *,
    is_checked: bool,
    expected: str = "",
) -> Staged:
    """Read, verify and pack. Raises what is in TOLD, Cancelled, or a fault of ours."""
    with opened as found:
        job.total_bytes = weights_bytes(loader.config, loader.dtype)
        _refuse_without_room(job.total_bytes)
        source = DigestingSource(found.source, is_checked=is_checked, progress=job.note)
        model = loader.load(source)
    job.what, job.total_bytes = "verify", source.digest.bytes
    checksum = source.digest.checksum()
    if expected and checksum != expected:
        raise WeightsError(f"the weights have checksum {checksum}, not {expected}")
    full = msgspec.structs.replace(
        weights,
        version=weights.version or checksum[:12],
        checksum=checksum,
        bytes=source.digest.bytes,
        num_tensors=len(source.digest.tensors),
    )
    job.what, job.done_bytes = "ready", source.digest.bytes
    return Staged(model, source.digest, full)


def _refuse_without_room(size_bytes: int) -> None:
    free = available_bytes()
    if free is not None and free < size_bytes * _SPARE:
        raise WeightsError(
            f"not enough memory for both copies: {free / 1e9:.1f} GB are free, "
            f"{size_bytes * _SPARE / 1e9:.1f} GB are needed"
        )


def why(error: BaseException | None) -> str:
    """The reason for people; a fault of ours is logged with its trace."""
    if error is None:
        return ""
    if isinstance(error, TOLD):
        return plain(str(error)) or type(error).__name__
    log.error("staging failed", exc_info=error)
    return f"internal error: {type(error).__name__}; see the rank's log"

"""Weights, pauses and memory as messages name them: where weights came from, what is staged.

Paths in here are the engine host's own, absolute, and seen by whoever may control the engine.
"""

from __future__ import annotations

from enum import StrEnum

from engine.protocol.base import Struct


class WeightSource(StrEnum):
    """How the weights that are served came to the engine."""

    START = "start"  # the folder that it was started with
    DISK = "disk"
    TENSOR = "tensor"  # uploaded
    DISTRIBUTED = "distributed"  # broadcast by a trainer


class PauseMode(StrEnum):
    """What `pause_generation` does to running requests."""

    ABORT = "abort"  # ended, and so are those that wait
    RETRACT = "retract"  # back in the queue, KV released
    IN_PLACE = "in_place"  # kept as they are, with their KV


class MemoryTag(StrEnum):
    """What `release_memory` can give up."""

    KV_CACHE = "kv_cache"
    WEIGHTS = "weights"


class WeightsView(Struct, frozen=True, kw_only=True):
    """One set of weights. `path` is the folder they can be loaded from again, "" for none."""

    version: str
    checksum: str = ""  # xxh3-128 over all tensors as served; "" until a rank has told it
    source: WeightSource = WeightSource.START
    path: str = ""
    label: str = ""  # for people: root:folder, file names, or the trainer's group
    bytes: int = 0  # of one rank's copy
    num_tensors: int = 0


class Staging(Struct, frozen=True, kw_only=True):
    """How far a rank is with staging weights beside those it serves."""

    what: str  # "stage", "verify", or "ready"
    done_bytes: int
    total_bytes: int
    elapsed_s: float = 0.0


class WeightsRoot(Struct, frozen=True, kw_only=True):
    """A folder under which weights may be loaded."""

    label: str
    path: str


class CheckpointView(Struct, frozen=True, kw_only=True):
    """A folder under a root. `problem` says why it cannot be loaded, as far as headers tell."""

    root: str  # its label
    name: str  # relative to the root
    path: str
    bytes: int = 0
    num_files: int = 0
    num_tensors: int = 0
    problem: str = ""

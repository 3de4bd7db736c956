"""What the API gives about weights: checkpoints, uploads, and the plan of a job."""

from __future__ import annotations

from typing import Any

from ninja import Schema

from api.schemas.outputs import AttachedOut, RootOut, WeightsOut


class CheckpointOut(Schema):
    """A folder under a root. `problem` says why it cannot be loaded, as far as headers tell."""

    root: str
    name: str
    path: str
    bytes: int
    num_files: int
    num_tensors: int
    problem: str


class CheckpointsOut(Schema):
    """What an engine could load from disk; for one path, just that folder."""

    roots: list[RootOut]
    checkpoints: list[CheckpointOut]


class UploadOut(Schema):
    """A file of weights; `sha256` is null until all of it has come. Go on from `offset`."""

    id: str
    name: str
    size_bytes: int
    offset: int
    sha256: str | None
    num_tensors: int
    uploaded_by: str
    created_at: str
    used_at: str
    piece_bytes: int
    links: dict[str, str]


class UploadPage(Schema):
    """Whole files, newest first, then what you have begun to send."""

    items: list[UploadOut]
    next_cursor: str | None


class SpanOut(Schema):
    """From low to high; `count` earlier jobs were measured, 0 for an estimate."""

    low: float
    high: float
    count: int


class RefusalOut(Schema):
    """Why the job would be refused, or would fail, as things are now."""

    code: str
    message: str
    holder: str | None
    remaining_s: float | None


class RiskOut(Schema):
    """Requests that notice: end early, run again from prefill, are waited for, are held."""

    lost: int
    restarted: int
    finish_first: int
    holds_new: bool


class CacheOut(Schema):
    """Cached tokens of one tier that would be of no use any more; null is not known."""

    tier: str
    tokens: int | None


class PlanOut(Schema):
    """What a job would do. It was not created. null: not known."""

    dry_run: bool
    engine: str
    kind: str
    params: dict[str, Any]
    mode: str | None
    as_of: str | None
    would_be_accepted: bool
    refusals: list[RefusalOut]
    num_ranks: int
    served: WeightsOut | None
    storage: AttachedOut | None
    cache_lost: list[CacheOut]
    recompute_rank_s: SpanOut | None
    running: int
    waiting: int
    at_risk: RiskOut
    held: SpanOut | None
    bytes_a_rank: int | None
    staging_s: SpanOut | None
    pause_s: SpanOut | None
    checkpoint: CheckpointOut | None
    can_be_undone: bool
    undo: str

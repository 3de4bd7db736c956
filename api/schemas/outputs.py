"""What the API gives: the payloads of console.selectors.payloads, described."""

from __future__ import annotations

from typing import Any

from ninja import Schema
from pydantic import Field


class PlacesOut(Schema):
    """How many items each place holds; all zero is fully idle."""

    running: int
    chunked_prefill: int
    waiting: int
    grammar: int
    results: int
    l1_backup: int
    l2_load: int
    l3_prefetch: int
    l3_backup: int


class KVOut(Schema):
    """Pages of one rank's device pool."""

    total_pages: int
    free_pages: int
    evictable_pages: int
    locked_pages: int
    held_pages: int
    used_pages: int
    page_size_tokens: int


class StagingOut(Schema):
    """How far a rank is with weights beside those it serves; `what`: stage, verify or ready."""

    what: str
    done_bytes: int
    total_bytes: int
    elapsed_s: float


class WeightsOut(Schema):
    """One set of weights. `path` is the folder they can be loaded from again, empty for none."""

    version: str
    checksum: str
    source: str
    path: str
    label: str
    bytes: int
    num_tensors: int


class RootOut(Schema):
    """A folder of the engine's host under which weights may be loaded, or a backend keep files."""

    label: str
    path: str


class HostOut(Schema):
    """Pages of one rank's L2."""

    total_pages: int
    free_pages: int
    evictable_pages: int
    locked_pages: int
    held_pages: int
    page_bytes: int
    layout: str


class RankStorageOut(Schema):
    """What one rank says of its storage backend (L3); counters grow from the attach on.

    `config_hash` is of its own settings, its overrides and secrets included; `drifts`: they are
    not what it should have. Not `is_open`: it could not be opened, the rank serves without it and
    tries again.
    """

    backend: str
    config_id: str
    config_hash: str
    is_open: bool
    breaker: str
    retry_in_s: float | None
    hit_pages: int
    miss_pages: int
    corrupt_pages: int
    read_bytes: int
    written_pages: int
    written_bytes: int
    dropped_pages: int
    errors: int
    last_error: str
    last_error_age_s: float | None
    hit_rate: float | None
    read_bytes_per_s: float
    write_bytes_per_s: float
    stored_pages: int | None
    used_bytes: int | None
    capacity_bytes: int | None
    drifts: bool


class AttachedOut(Schema):
    """A storage backend with its settings; a secret is its fingerprint."""

    backend: str
    config: dict[str, Any]
    rank_configs: dict[str, dict[str, Any]]
    config_id: str


class PoliciesOut(Schema):
    """When pages are copied between tiers, and how long requests wait for them."""

    write_policy: str
    prefetch_policy: str


class BackendProblemOut(Schema):
    """A backend that an engine knows; `problem` says why it cannot be attached there."""

    backend: str
    problem: str


class RankOut(Schema):
    """One DP rank, as last observed."""

    dp_rank: int
    online: bool
    idle: bool | None
    places: PlacesOut
    weight_version: str
    weight_checksum: str
    condition: str
    note: str
    staging: StagingOut | None
    storage_backend: str | None
    host: HostOut | None
    storage: RankStorageOut | None
    kv: KVOut | None
    proven: bool
    running: int
    waiting: int
    hit_rate: float | None
    decode_tokens_per_s: float
    prefill_tokens_per_s: float | None
    violations: int


class RankPartOut(Schema):
    """One rank's part in a job."""

    dp_rank: int
    state: str
    message: str


class JobRankOut(RankPartOut):
    """One rank's part in a job: what it staged, how long its commit took, whom it disturbed."""

    staging: StagingOut | None
    effect_s: float | None
    interrupted: int


class PendingRankOut(RankPartOut):
    """One rank's part in an open operation, and what keeps it from idle."""

    places: PlacesOut | None


class PendingOut(Schema):
    """The open operation of an engine; `job_id` is null when it is not this console's."""

    op_id: str
    job_id: str | None
    kind: str
    mode: str
    phase: str
    attempt: int
    timeout_s: float
    remaining_s: float
    deadline_at: str
    held_requests: int
    awaited_ranks: list[int]
    ranks: list[PendingRankOut]
    requested_by: str


class KeysOut(Schema):
    """Public halves of the console's keys, Z85; null when there is none that it could use."""

    curve_public_key: str | None


class EngineOut(Schema):
    """One engine, as last observed."""

    name: str
    driver: str
    enabled: bool
    labels: dict[str, str]
    control_address: str
    events_address: str
    curve_key: str | None
    online: bool
    epoch: str | None
    seq: int | None
    observed_at: str | None
    idle: bool | None
    places: PlacesOut | None
    pending_operation: PendingOut | None
    ranks: list[RankOut]
    model: str | None
    engine_version: str | None
    http_address: str | None
    held_requests: int | None
    weights: WeightsOut | None
    weights_roots: list[RootOut]
    paused: str | None
    released: list[str]
    needs_weights: bool | None
    storage: AttachedOut | None
    policies: PoliciesOut | None
    hierarchical: bool | None
    host_layout: str | None
    storage_roots: list[RootOut]
    backends: list[BackendProblemOut]
    note: str
    version: int
    links: dict[str, str]


class ErrorOut(Schema):
    """Why a job did not succeed."""

    code: str
    message: str
    holder: str | None = None
    remaining_s: float | None = None


class RankProblemOut(Schema):
    """What became of one rank."""

    dp_rank: int
    state: str
    detail: str


class JobProblemOut(Schema):
    """Why an ended job did not succeed: a problem document with an entry for each rank."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    instance: str
    ranks: list[RankProblemOut]


class FollowOut(Schema):
    """Another job that this one follows, or that follows it."""

    job: str
    follow: str


class JobOut(Schema):
    """One job."""

    id: str
    engine: str
    kind: str
    params: dict[str, Any]
    state: str
    phase: str | None
    reason: str
    requested_by: str
    via: str
    created_at: str
    started_at: str | None
    finished_at: str | None
    deadline_at: str | None
    ranks: list[JobRankOut]
    error: ErrorOut | None
    problem: JobProblemOut | None
    mode: str
    attempt: int
    blocked_by: str | None
    cancel_requested: bool
    sent_bytes: int | None
    total_bytes: int | None
    note: str
    reply: dict[str, Any] | None
    version: int
    origin: FollowOut | None
    followers: list[FollowOut]
    links: dict[str, str]


class AuditOut(Schema):
    """One entry of the audit log; `body_text` is the stored truth, `body` its reading. `hash`
    follows from it and from the entry before."""

    seq: int
    v: int
    hash: str
    created_at: str
    action: str
    stage: str
    kind: str | None
    result: str
    actor: str
    via: str
    token: str | None
    request_id: str | None
    engine: str | None
    job: str | None
    body: dict[str, Any]
    body_text: str


class AuditHeadOut(Schema):
    """The newest entry, what was signed, and what is no longer here."""

    seq: int
    hash: str
    anchored_seq: int
    anchored_at: str | None
    public_key: str
    segments: list[AuditSegmentOut]


class AuditSegmentOut(Schema):
    """Entries that were exported, signed and removed."""

    first: int
    last: int
    closed_at: str
    closed_by: str
    file: str
    sha256: str


class AuditVerdictOut(Schema):
    """What a check of the log found; `fault_seq` is the first entry that cannot be trusted."""

    head: int
    verified_to: int
    checked_at: str
    anchored_to: int
    anchored_at: str | None
    ok: bool
    fault_seq: int | None
    fault: str | None


class EnginePage(Schema):
    """Engines by name; there is one page."""

    items: list[EngineOut]
    next_cursor: str | None


class JobPage(Schema):
    """Jobs, newest first, 50 a page."""

    items: list[JobOut]
    next_cursor: str | None


class AuditPage(Schema):
    """Entries, newest first, 50 a page."""

    items: list[AuditOut]
    next_cursor: str | None


class Problem(Schema):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    instance: str
    request_id: str
    holder: str | None = Field(default=None, description="409: the job or operation in the way")
    remaining_s: float | None = Field(default=None, description="409: the holder's time left")
    offset: int | None = Field(default=None, description="uploads: where to go on from")
    errors: list[dict[str, Any]] | None = Field(default=None, description="422: field by field")

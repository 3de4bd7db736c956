"""What a job would do, before it is asked for: what it touches, costs and risks; what refuses it.

Reads the newest snapshot, earlier jobs and, for a folder, the engine. Creates nothing. What is not
known is None, never a guess.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from console.access import KIND_ACTS, Rights
from console.choices import SHARED_KINDS, STORAGE_KINDS, WEIGHT_UPDATES, JobKind, OnConflict
from console.clock import db_now
from console.exceptions import ConsoleError
from console.params import (
    AbortParams,
    DiskParams,
    FlushParams,
    JobParams,
    PauseParams,
    ReleaseParams,
    ResumeParams,
    TensorParams,
    WeightParams,
)
from console.selectors.checkpoints import checkpoints_ask
from console.selectors.engines import EngineView, engine_get
from console.selectors.history import History, Span, history_of
from console.selectors.jobs import job_holder, remaining_s
from console.selectors.plan_storage import storage_refusals, storage_undo
from console.selectors.refusals import Refusal
from console.selectors.storage import Attached, attached_of
from console.selectors.uploads import upload_path, uploads_named
from console.selectors.weights import Weights
from engine.protocol import CheckpointView

CHECK_S = 1.5  # a plan does not wait longer for the engine's look at a folder


@dataclass(frozen=True)
class Risk:
    """Requests that notice. `lost` end early, `restarted` run again from prefill."""

    lost: int = 0
    restarted: int = 0
    finish_first: int = 0  # are waited for
    holds: bool = False  # new ones are held meanwhile


@dataclass(frozen=True)
class Plan:
    """All that is known beforehand."""

    view: EngineView
    params: JobParams
    history: History
    refusals: list[Refusal] = field(default_factory=list)
    checkpoint: CheckpointView | None = None
    upload_bytes: int | None = None

    @property
    def kind(self) -> JobKind:
        """What would be asked."""
        return self.params.kind

    @property
    def mode(self) -> str:
        """What is done to requests meanwhile; empty when it waits for nothing."""
        return str(self.params.mode_in_force) if self.params.waits else ""

    @property
    def drops_cache(self) -> bool:
        """True when cached tokens are of no use afterwards, flushed or not."""
        match self.params:
            case FlushParams() | WeightParams():
                return True
            case ReleaseParams(tags=tags):
                return "kv_cache" in tags
        return False

    @property
    def cached_tokens(self) -> int | None:
        """In the device caches of all ranks, used by no request now; None when none has told."""
        kv = [rank.kv for rank in self.view.ranks if rank.kv is not None]
        if not kv:
            return None
        return sum(one.evictable_pages * one.page_size_tokens for one in kv)

    @property
    def recompute_s(self) -> Span | None:
        """Rank-seconds of prefill to have the cache again: as much as is hit, up to all of it."""
        low = high = 0.0
        for rank in self.view.ranks:
            if rank.kv is None or not rank.kv.evictable_pages:
                continue
            if not rank.prefill_tokens_per_s:
                return None
            tokens = rank.kv.evictable_pages * rank.kv.page_size_tokens
            whole_s = tokens / rank.prefill_tokens_per_s
            low += whole_s * (rank.hit_rate or 0.0)
            high += whole_s
        return Span(low, high)

    @property
    def running(self) -> int:
        """Running requests, all ranks."""
        return sum(rank.running for rank in self.view.ranks)

    @property
    def waiting(self) -> int:
        """Waiting requests, all ranks."""
        return sum(rank.waiting for rank in self.view.ranks)

    @property
    def risk(self) -> Risk:
        """What becomes of requests."""
        match self.params:
            case AbortParams(abort_all=everyone):
                return Risk(lost=self.running + self.waiting if everyone else 1)
            case PauseParams(pause_mode="abort"):
                return Risk(lost=self.running + self.waiting, holds=True)
            case PauseParams(pause_mode=how):
                return Risk(restarted=self.running if how == "retract" else 0, holds=True)
        match self.mode:
            case "drain":
                return Risk(finish_first=self.running + self.waiting, holds=True)
            case "retract":
                return Risk(restarted=self.running, holds=True)
            case "abort":
                return Risk(lost=self.running, holds=True)
            case "wait":
                return Risk(finish_first=self.running + self.waiting)
        return Risk()

    @property
    def served(self) -> Weights | None:
        """What the engine serves now."""
        return Weights.of(self.view.state.weights) if self.view.state else None

    @property
    def attached(self) -> Attached | None:
        """The storage backend that every rank is to have now."""
        return attached_of(self.view)

    @property
    def bytes_a_rank(self) -> int | None:
        """Of new weights; from the folder, the files, or, from a trainer, as many as now."""
        match self.params:
            case DiskParams():
                return self.checkpoint.bytes or None if self.checkpoint else None
            case TensorParams():
                return self.upload_bytes
            case WeightParams():
                return self.served.bytes or None if self.served else None
        return None

    @property
    def undo(self) -> tuple[bool, str]:
        """(it can be undone, how or why not)."""
        return _undo(self)


_UNDO = {
    JobKind.FLUSH_CACHE: (False, "None. The cache refills by use."),
    JobKind.UPDATE_WEIGHT_VERSION: (True, "Name them again."),
    JobKind.PAUSE_GENERATION: (True, "Continue; requests that were ended stay ended."),
    JobKind.CONTINUE_GENERATION: (True, "Pause again."),
    JobKind.ABORT_REQUESTS: (False, "None. A request that was ended must be sent again."),
    JobKind.RELEASE_MEMORY: (
        True,
        "Resume; weights come back without contents, so an update must follow.",
    ),
    JobKind.RESUME_MEMORY: (True, "Release again."),
    JobKind.REPAIR: (False, "None is needed: it brings ranks to what the engine is to serve."),
}


def _undo(plan: Plan) -> tuple[bool, str]:
    if plan.kind in STORAGE_KINDS:
        return storage_undo(plan.params, plan.attached)
    if plan.kind not in WEIGHT_UPDATES:
        return _UNDO[plan.kind]
    until = (
        "Until the last rank commits: old weights are kept until then, and put back if one fails."
    )
    served = plan.served
    if served is None:
        return (
            False,
            f"{until} What is served now is not known, nor whether it can be loaded again.",
        )
    if served.why_no_return:
        return False, f"{until} Later not: {served.why_no_return}."
    return True, f"{until} Later, “Return to {served.version}” is a new update from its folder."


def _conflict(view: EngineView, params: JobParams, on_conflict: OnConflict) -> list[Refusal]:
    if params.kind in SHARED_KINDS or on_conflict == OnConflict.QUEUE:
        return []
    holder = job_holder(engine=view.engine)
    if holder is not None:
        return [
            Refusal(
                "operation_pending",
                f"job {holder.pk} holds engine {view.name}",
                str(holder.pk),
                remaining_s(holder, db_now()),
            )
        ]
    if view.online and view.pending is not None and view.pending.job_id is None:
        operation = view.pending.view
        return [
            Refusal(
                "operation_pending",
                f"operation {operation.op_id}, not of this console, holds engine {view.name}",
                operation.op_id,
                round(operation.remaining_s, 1),
            )
        ]
    return []


def _state(view: EngineView, params: JobParams) -> list[Refusal]:
    found = []
    if not view.engine.enabled:
        found.append(Refusal("engine_disabled", f"engine {view.name} is disabled"))
    if not view.online:
        found.append(
            Refusal("engine_unreachable", f"engine {view.name} does not answer: {view.note}")
        )
    unproven = [str(rank.dp_rank) for rank in view.ranks if view.online and not rank.proven]
    if unproven and params.kind not in {JobKind.REPAIR, *SHARED_KINDS}:
        names = ("rank " if len(unproven) == 1 else "ranks ") + ", ".join(unproven)
        found.append(
            Refusal("rank_not_ready", f"an update needs every rank; {names} cannot take part")
        )
    return [*found, *_memory(view, params), *storage_refusals(view, params)]


def _memory(view: EngineView, params: JobParams) -> list[Refusal]:
    """Memory that is released already, or never was."""
    released = [str(tag) for tag in view.state.released] if view.online and view.state else None
    if released is None or not isinstance(params, ReleaseParams | ResumeParams):
        return []
    gives = isinstance(params, ReleaseParams)
    word = "already released" if gives else "not released"
    return [
        Refusal("invalid_argument", f"{tag} is {word}")
        for tag in params.tags
        if (tag in released) is gives
    ]


def _folder(view: EngineView, params: DiskParams) -> tuple[CheckpointView | None, list[Refusal]]:
    """The engine's look at the folder, and what is wrong with it; None when it did not answer."""
    if not view.online:
        return None, []
    try:
        found = checkpoints_ask(engine=view.engine, path=params.model_path, timeout_s=CHECK_S)
    except ConsoleError:
        return None, []
    one = next(iter(found.checkpoints), None)
    if one is None:
        return None, [Refusal("invalid_argument", "the engine knows no such folder")]
    return one, [Refusal("invalid_argument", one.problem)] if one.problem else []


def _files(params: TensorParams) -> tuple[int | None, list[Refusal]]:
    known = uploads_named(params.uploads)
    for sha256 in params.uploads:
        if sha256 not in known or not upload_path(sha256).is_file():
            why = f"uploads: no file of SHA-256 {sha256} was uploaded, or it was cleared"
            return None, [Refusal("invalid", why)]
    return sum(one.size_bytes for one in known.values()), []


def job_plan(
    *,
    engine_name: str,
    params: JobParams,
    rights: Rights,
    on_conflict: OnConflict = OnConflict.REFUSE,
    looks: bool = True,
) -> Plan:
    """The plan of a job, as of now; at most CHECK_S. Raises EngineNotFound.

    Without `looks` neither the engine nor the files are asked whether the weights are there.
    """
    view = engine_get(name=engine_name, rights=rights)
    refusals = [*_state(view, params), *_conflict(view, params, on_conflict)]
    checkpoint, upload_bytes = None, None
    looks = looks and rights.may(KIND_ACTS[params.kind], view.labels)
    if looks and isinstance(params, DiskParams):
        checkpoint, more = _folder(view, params)
        refusals += more
    if looks and isinstance(params, TensorParams):
        upload_bytes, more = _files(params)
        refusals += more
    return Plan(
        view=view,
        params=params,
        history=history_of(engine=view.engine, kind=params.kind, mode=str(params.mode_in_force)),
        refusals=refusals,
        checkpoint=checkpoint,
        upload_bytes=upload_bytes,
    )

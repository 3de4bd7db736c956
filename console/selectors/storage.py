"""Which storage backend (L3) is attached where, as told by a reply or a snapshot; how to undo it.

Settings pass through an allow-list on their way out: what the schema does not know as public is
hidden, whoever sent it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any  # settings are JSON objects

import msgspec

from console.choices import JobKind, JobState
from console.models import Job
from console.params.settings import FINGERPRINT
from console.selectors.engines import EngineView
from engine.protocol import (
    EXPERIMENTAL_BACKENDS,
    CachePolicies,
    EngineState,
    RankStorage,
    RankView,
    StorageBackend,
    StorageView,
    fields_of,
)

HIDDEN = "hidden"
_LOOK_BACK = 20  # jobs, for the one that attached what is attached


def public(backend: str, text: str) -> dict[str, Any]:
    """Settings as they may be shown: what is secret, or no known setting, is hidden."""
    try:
        document = json.loads(text or "{}")
    except ValueError:
        return {}
    if not isinstance(document, dict) or backend not in list(StorageBackend):
        return {}
    kinds = {one.name: one.kind for one in fields_of(StorageBackend(backend))}
    return {
        name: value if _may_be_shown(kinds.get(name, "secret"), value) else HIDDEN
        for name, value in document.items()
    }


def _may_be_shown(kind: str, value: object) -> bool:
    if kind != "secret":
        return isinstance(value, str | int | float | bool)
    return value == "" or (isinstance(value, str) and value.startswith(FINGERPRINT))


@dataclass(frozen=True)
class Attached:
    """A backend with its settings, without secrets."""

    backend: str
    config: Mapping[str, Any] = field(default_factory=dict)
    rank_configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    config_id: str = ""

    @staticmethod
    def of(view: object) -> Attached | None:
        """From a stored reply's object or from the protocol's struct; None for none."""
        if isinstance(view, StorageView):
            view = msgspec.to_builtins(view)
        if not isinstance(view, dict) or not view.get("backend"):
            return None
        backend, ranks = str(view["backend"]), view.get("rank_configs")
        return Attached(
            backend=backend,
            config=public(backend, str(view.get("config") or "")),
            rank_configs={
                str(rank): public(backend, str(text))
                for rank, text in (ranks if isinstance(ranks, dict) else {}).items()
            },
            config_id=str(view.get("config_id") or ""),
        )

    @property
    def is_experimental(self) -> bool:
        """Tried on a stand-in only."""
        return self.backend in EXPERIMENTAL_BACKENDS

    @property
    def short_id(self) -> str:
        """The first digits of its settings' id."""
        return self.config_id[:8]

    def is_same_as(self, other: Attached | None) -> bool:
        """The same backend with the same settings, secrets included."""
        return other is not None and (self.backend, self.config_id) == (
            other.backend,
            other.config_id,
        )


def attached_of(view: EngineView) -> Attached | None:
    """What every rank of an engine is to have attached; None for nothing, or not known."""
    return Attached.of(view.state.storage) if view.state is not None else None


def is_as_desired(rank: RankView, desired: Attached | None) -> bool:
    """True when a rank uses what it is to have, with the settings it is to have."""
    told = rank.storage
    if told is None:  # its counters come a moment after its state
        return rank.storage_backend == (desired.backend if desired is not None else None)
    if desired is None:
        return False
    same = told.backend == desired.backend and told.config_id == desired.config_id
    return same and told.is_open and not told.drifts


def odd_ranks(view: EngineView) -> list[RankView]:
    """Ranks whose backend is not what their engine is to have."""
    desired = attached_of(view)
    return [rank for rank in view.ranks if not is_as_desired(rank, desired)]


@dataclass(frozen=True)
class Totals:
    """Of all ranks that have a backend; None is not known."""

    hit_rate: float | None
    read_bytes_per_s: float
    write_bytes_per_s: float
    stored_bytes: int | None
    stored_pages: int | None


def totals_of(view: EngineView) -> Totals | None:
    """Over the ranks of one engine; None when none has a backend."""
    told = [rank.storage for rank in view.ranks if rank.storage is not None]
    if not told:
        return None
    rates = [one.hit_rate for one in told if one.hit_rate is not None]
    return Totals(
        hit_rate=sum(rates) / len(rates) if rates else None,
        read_bytes_per_s=sum(one.read_bytes_per_s for one in told),
        write_bytes_per_s=sum(one.write_bytes_per_s for one in told),
        stored_bytes=_sum(told, "used_bytes"),
        stored_pages=_sum(told, "stored_pages"),
    )


def _sum(told: list[RankStorage], name: str) -> int | None:
    counted = [getattr(one, name) for one in told]
    return None if any(one is None for one in counted) else sum(counted)


def policies_of(view: object) -> dict[str, str]:
    """Policies as words, from a reply's object or a snapshot; empty for none."""
    if isinstance(view, CachePolicies):
        view = msgspec.to_builtins(view)
    if not isinstance(view, dict):
        return {}
    names = ("write_policy", "prefetch_policy")
    return {name: str(view[name]) for name in names if view.get(name)}


@dataclass(frozen=True)
class Change:
    """What a job changed, by the engine's own reply."""

    before: Attached | None
    now: Attached | None
    policies_before: Mapping[str, str]
    policies: Mapping[str, str]

    @staticmethod
    def of(job: Job) -> Change | None:
        """None for a job that has no reply of that kind."""
        reply = job.reply if isinstance(job.reply, dict) else {}
        if not reply.get("policies") and not reply.get("policies_before"):
            return None
        return Change(
            before=Attached.of(reply.get("storage_before")),
            now=Attached.of(reply.get("storage")),
            policies_before=policies_of(reply.get("policies_before")),
            policies=policies_of(reply.get("policies")),
        )

    @property
    def is_switch(self) -> bool:
        """One backend, or one set of settings, took another's place."""
        return self.before is not None and self.now is not None and not self.has_same_backend

    @property
    def has_same_backend(self) -> bool:
        """Nothing was attached, detached or switched."""
        if self.before is None or self.now is None:
            return self.before is None and self.now is None
        return self.before.is_same_as(self.now)

    @property
    def policies_changed(self) -> bool:
        """A policy is another than before."""
        return bool(self.policies_before) and self.policies_before != self.policies


@dataclass(frozen=True)
class Undo:
    """The job that would put back what another one changed."""

    kind: JobKind
    attached: Attached | None = None  # to attach again, by its config_id: no secret is needed
    policies: Mapping[str, str] = field(default_factory=dict)


def undo_of(job: Job) -> Undo | None:
    """The inverse of a job that succeeded; None where there is none."""
    change = Change.of(job) if job.state == JobState.SUCCEEDED else None
    if change is None or job.kind == JobKind.CLEAR_STORAGE_BACKEND:
        return None
    before, policies = change.before, change.policies_before if change.policies_changed else {}
    if change.has_same_backend:
        return Undo(JobKind.SET_CACHE_POLICIES, policies=policies) if policies else None
    if before is None:
        return Undo(JobKind.DETACH_STORAGE_BACKEND)
    if not before.config_id:
        return None
    return Undo(JobKind.ATTACH_STORAGE_BACKEND, attached=before, policies=policies)


def is_as_left(job: Job, view: EngineView) -> bool:
    """What this job left is there: what is attached, and the policies if it changed them."""
    change, now = Change.of(job), attached_of(view)
    if view.state is None or change is None:
        return False
    if is_newer(job, view.state):
        return True
    undo = undo_of(job)
    if undo is not None and undo.policies and policies_of(view.state.policies) != change.policies:
        return False
    return change.now is None if now is None else now.is_same_as(change.now)


def is_newer(job: Job, state: EngineState) -> bool:
    """The engine's newest snapshot is from before the job's end, which is told another way."""
    reply = job.reply or {}
    finished_s = reply.get("finished_clock_s")
    if reply.get("epoch") != state.epoch or not isinstance(finished_s, int | float):
        return False
    return state.clock_s <= finished_s


def attached_by(view: EngineView) -> Job | None:
    """The job that attached what is attached now; None when no job of ours did."""
    now = attached_of(view)
    if now is None:
        return None
    jobs = Job.objects.filter(
        engine=view.engine, kind=JobKind.ATTACH_STORAGE_BACKEND, state=JobState.SUCCEEDED
    ).order_by("-finished_at", "-id")
    for job in jobs[:_LOOK_BACK]:
        change = Change.of(job)
        if change is None or not change.has_same_backend:  # the others changed policies
            return job if change is not None and now.is_same_as(change.now) else None
    return None

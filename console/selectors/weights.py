"""Which weights are served, rank by rank; where they came from; where ranks or engines differ."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from console.access import Rights
from console.choices import WEIGHT_KINDS, JobKind, JobState, WeightSource
from console.models import Job
from console.selectors.access import engines_with
from console.selectors.engines import EngineView
from console.snapshots import snapshots_get
from engine.protocol import EngineState, RankView, WeightsView

LINEAGE_JOBS = 20
Served = tuple[str, str]  # version, checksum


@dataclass(frozen=True)
class Weights:
    """One set of weights, as a reply or a snapshot names it."""

    version: str
    checksum: str = ""
    source: str = ""
    path: str = ""
    label: str = ""
    bytes: int = 0
    num_tensors: int = 0

    @staticmethod
    def of(view: object) -> Weights | None:
        """From a stored reply's object or from the protocol's struct; None for none."""
        if isinstance(view, WeightsView):
            names = view.__struct_fields__
            return Weights(**{name: getattr(view, name) for name in names})
        if isinstance(view, dict) and view.get("version"):
            known = Weights.__dataclass_fields__
            return Weights(**{name: value for name, value in view.items() if name in known})
        return None

    @property
    def source_words(self) -> str:
        """`disk`, `trainer group`, …"""
        known = self.source in WeightSource.values
        return str(WeightSource(self.source).label) if known else str(self.source)

    @property
    def is_same_as(self) -> Served:
        """What tells one set from another."""
        return (self.version, self.checksum)

    @property
    def why_no_return(self) -> str:
        """Why they cannot be loaded again; empty when they can."""
        if self.path:
            return ""
        return (
            f"{self.version} came from a {self.source_words} and no file of it was kept, "
            "so there is nothing to return to"
        )


def served_by(rank: RankView) -> Served:
    """What a rank says that it serves."""
    return (rank.weight_version, rank.weight_checksum)


def is_as_desired(rank: RankView, state: EngineState) -> bool:
    """True when a rank serves what its engine is to serve, as far as both have told."""
    if state.weights is None:
        return True
    same = rank.weight_version == state.weights.version
    told = bool(rank.weight_checksum and state.weights.checksum)
    return same and (not told or rank.weight_checksum == state.weights.checksum)


@dataclass(frozen=True)
class Group:
    """Engines that serve one model, and so should serve the same weights."""

    model: str
    views: tuple[EngineView, ...]

    @property
    def split(self) -> list[tuple[Served, int]]:
        """How many ranks serve which weights, most first."""
        counts: dict[Served, int] = {}
        for view in self.views:
            for rank in view.ranks:
                counts[served_by(rank)] = counts.get(served_by(rank), 0) + 1
        return sorted(counts.items(), key=lambda item: (-item[1], item[0]))

    @property
    def is_mixed(self) -> bool:
        """Some rank serves other weights than another."""
        return len(self.split) > 1

    @property
    def num_ranks(self) -> int:
        """Of all engines."""
        return sum(len(view.ranks) for view in self.views)


def groups_of(views: list[EngineView]) -> list[Group]:
    """Engines by model; those never seen are in none."""
    found: dict[str, list[EngineView]] = {}
    for view in views:
        if view.state is not None:
            found.setdefault(view.state.model, []).append(view)
    return [Group(model, tuple(members)) for model, members in sorted(found.items())]


@dataclass(frozen=True)
class Mixed:
    """A model that is served with more than one set of weights."""

    model: str
    split: tuple[tuple[str, int], ...]  # words, ranks
    engine_names: tuple[str, ...]


def _words(served: Served, versions: list[str]) -> str:
    """The version; with its checksum where that alone tells two apart."""
    version, checksum = served
    return version if versions.count(version) < 2 else f"{version} {checksum[:8]}"


def mixed_fleet(*, rights: Rights) -> list[Mixed]:
    """Models with more than one set of weights, from the newest snapshots alone."""
    names = list(engines_with(rights).values_list("name", flat=True))
    counts: dict[str, dict[Served, int]] = {}
    members: dict[str, list[str]] = {}
    for name, stored in snapshots_get(names).items():
        if stored.state is None or not stored.online:
            continue
        for rank in stored.state.ranks:
            here = counts.setdefault(stored.state.model, {})
            here[served_by(rank)] = here.get(served_by(rank), 0) + 1
        members.setdefault(stored.state.model, []).append(name)
    found = []
    for model, split in counts.items():
        if len(split) < 2:
            continue
        versions = [version for version, _ in split]
        ordered = sorted(split.items(), key=lambda item: (-item[1], item[0]))
        words = tuple((_words(served, versions), count) for served, count in ordered)
        found.append(Mixed(model=model, split=words, engine_names=tuple(members[model])))
    return found


@dataclass(frozen=True)
class Push:
    """One line of the lineage: a job that was to change the weights, or how it all began."""

    at: datetime | None
    weights: Weights | None  # what it brought, or was to bring
    job: Job | None
    pause_s: float | None = None

    @property
    def is_settled(self) -> bool:
        """True when its weights came to be served."""
        return self.job is None or self.job.state == JobState.SUCCEEDED


def _asked(job: Job) -> Weights:
    """What a job was to bring, as far as its request says."""
    params = job.params
    sources = {
        JobKind.UPDATE_WEIGHTS_FROM_DISK: "disk",
        JobKind.UPDATE_WEIGHTS_FROM_TENSOR: "tensor",
        JobKind.UPDATE_WEIGHTS_FROM_DISTRIBUTED: "distributed",
    }
    label = str(params.get("model_path") or (params.get("group") or {}).get("group_name") or "")
    return Weights(
        version=str(params.get("weight_version") or params.get("new_version") or "–"),
        source=sources.get(JobKind(job.kind), ""),
        label=label.rpartition("/")[2] if params.get("model_path") else label,
    )


def _push(job: Job) -> Push:
    reply = job.reply if isinstance(job.reply, dict) else {}
    changed = job.state in (JobState.SUCCEEDED, JobState.PARTIAL)
    weights = Weights.of(reply.get("weights")) if changed else None
    pause_s = reply.get("pause_s")
    return Push(
        at=job.created_at,
        weights=weights or _asked(job),
        job=job,
        pause_s=float(pause_s) if isinstance(pause_s, int | float) else None,
    )


def lineage_of(engine_pks: list[int], *, limit: int = LINEAGE_JOBS) -> list[Push]:
    """Who pushed what, newest first; at the end how it began, when that is still in reach."""
    rows = list(
        Job.objects.select_related("engine")
        .filter(engine_id__in=engine_pks, kind__in=WEIGHT_KINDS - {JobKind.REPAIR})
        .order_by("-created_at", "-id")[: limit + 1]
    )
    pushes = [_push(job) for job in rows[:limit]]
    if len(rows) <= limit:
        starts: dict[int, Weights] = {}
        for job in reversed(rows):
            reply = job.reply if isinstance(job.reply, dict) else {}
            before = Weights.of(reply.get("weights_before"))
            if before is not None and before.source == WeightSource.START:
                starts.setdefault(job.engine_id, before)
        seen = {one.is_same_as: one for one in starts.values()}
        pushes += [Push(at=None, weights=one, job=None) for one in seen.values()]
    return pushes


def previous_of(view: EngineView) -> Weights | None:
    """What an engine served before what it serves now; None when no job of ours tells."""
    now = Weights.of(view.state.weights) if view.state is not None else None
    if now is None:
        return None
    rows = Job.objects.filter(
        engine=view.engine,
        kind__in=WEIGHT_KINDS,
        state__in=[JobState.SUCCEEDED, JobState.PARTIAL],
        reply__isnull=False,
    ).order_by("-finished_at", "-id")
    for reply in rows.values_list("reply", flat=True)[:LINEAGE_JOBS]:
        before = Weights.of(reply.get("weights_before")) if isinstance(reply, dict) else None
        if before is not None and before.is_same_as != now.is_same_as:
            return before
    return None

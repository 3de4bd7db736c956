"""Read engines: the row, and the newest state that the relay saw, with its age."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from console.access import Act, Rights
from console.clock import db_now
from console.exceptions import EngineNotFound
from console.models import Engine, Job
from console.prepared import Prepared
from console.selectors.access import engines_with, labels_of_engine, sees_engine
from console.snapshots import StoredSnapshot, snapshots_get
from engine.protocol import PLACES, EngineState, OperationView, Places, RankView

_NAMED = Prepared(lambda name: Engine.objects.filter(name=name, removed_at=None), str)
_JOB = Prepared(lambda pk: Job.objects.filter(pk=pk).values_list("pk"), UUID)

ONLINE_MAX_AGE_S = 3.0
PAGE_ENGINES = 50
NAME_PART = re.compile(r"[a-z0-9-]{0,63}")


@dataclass(frozen=True)
class PendingOperation:
    """The open operation of an engine; `job_id` when it is a job of this console."""

    view: OperationView
    job_id: UUID | None
    deadline_at: datetime


@dataclass(frozen=True)
class EngineView:
    """One engine as pages and the API show it. Without a snapshot nothing of its state is known."""

    engine: Engine
    online: bool
    observed_at: datetime | None
    age_s: float | None
    rev: int
    note: str
    state: EngineState | None
    pending: PendingOperation | None

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.engine.name

    @property
    def labels(self) -> dict[str, str]:
        """What grants are matched with."""
        return labels_of_engine(self.engine)

    @property
    def idle(self) -> bool | None:
        """Fully idle on every rank; None when not known or offline."""
        return self.state.idle if self.state is not None and self.online else None

    @property
    def ranks(self) -> list[RankView]:
        """Ranks as last seen."""
        return self.state.ranks if self.state is not None else []

    @property
    def places(self) -> Places | None:
        """Counts of each place, summed over the ranks."""
        if self.state is None:
            return None
        return Places(
            **{name: sum(getattr(rank.places, name) for rank in self.ranks) for name in PLACES}
        )

    @property
    def version(self) -> int:
        """Grows with each newer snapshot."""
        return self.rev


def own_job(op_id: str) -> UUID | None:
    """The job of this console that an operation is; None for one of anybody else."""
    try:
        job_id = UUID(op_id)
    except ValueError:
        return None
    return job_id if _JOB.first(job_id) is not None else None


def _view(engine: Engine, stored: StoredSnapshot | None, now: datetime) -> EngineView:
    if stored is None:
        return EngineView(
            engine=engine,
            online=False,
            observed_at=None,
            age_s=None,
            rev=0,
            note="never seen: is the relay running, and the engine started?",
            state=None,
            pending=None,
        )
    observed_at = datetime.fromtimestamp(stored.observed_at, UTC)
    age_s = max(0.0, (now - observed_at).total_seconds())
    online = stored.online and age_s < ONLINE_MAX_AGE_S
    pending = None
    if stored.state is not None and stored.state.pending_operation is not None:
        operation = stored.state.pending_operation
        pending = PendingOperation(
            view=operation,
            job_id=own_job(operation.op_id),
            deadline_at=observed_at + timedelta(seconds=operation.remaining_s),
        )
    note = stored.note or ("" if online else "no news: is the relay running?")
    return EngineView(
        engine=engine,
        online=online,
        observed_at=observed_at,
        age_s=age_s,
        rev=stored.rev,
        note=note,
        state=stored.state,
        pending=pending,
    )


def _views(engines: list[Engine]) -> list[EngineView]:
    """Each with its newest state, all of them as of one moment."""
    stored, now = snapshots_get([engine.name for engine in engines]), db_now()
    return [_view(engine, stored.get(engine.name), now) for engine in engines]


def engine_list(*, rights: Rights) -> list[EngineView]:
    """Every registered engine that one may see, by name. Raises Forbidden without any role."""
    rights.require(Act.READ)
    return _views(list(engines_with(rights)))


def engine_page(
    *, rights: Rights, after: str = "", q: str = "", limit: int = PAGE_ENGINES
) -> tuple[list[EngineView], int, str]:
    """(engines by name behind `after`, how many fit in all, where the next page begins: "" at the
    end) of those whose names hold `q`. Raises Forbidden without any role."""
    rights.require(Act.READ)
    rows = engines_with(rights)
    if q:
        rows = rows.filter(name__contains=q)
    total = rows.count()
    engines = list(rows.filter(name__gt=after)[: limit + 1])
    more, engines = len(engines) > limit, engines[:limit]
    return _views(engines), total, engines[-1].name if more else ""


def engines_for(act: Act, rights: Rights) -> list[EngineView]:
    """The engines on which one may do `act`, by name; Forbidden when one may nowhere."""
    rights.require(act)
    return [view for view in engine_list(rights=rights) if rights.may(act, view.labels)]


def engine_named(name: str, *, rights: Rights) -> Engine:
    """The registered engine, without its state.

    Raises EngineNotFound, also for one that is there for others only; Forbidden without any role.
    """
    rights.require(Act.READ)
    # PostgreSQL takes no NUL, and would answer that it failed.
    engine = None if "\x00" in name else _NAMED.first(name)
    if engine is None or not sees_engine(rights, engine):
        raise EngineNotFound(f"no engine is named {name!r}")
    return engine


def engine_get(*, name: str, rights: Rights) -> EngineView:
    """One engine. Raises EngineNotFound."""
    engine = engine_named(name, rights=rights)
    return engine_view(engine)


def engine_view(engine: Engine) -> EngineView:
    """This engine as last seen, also one that was removed: for a page of one of its jobs."""
    return _views([engine])[0]


def engines_enabled() -> list[Engine]:
    """The engines that the relay follows."""
    return list(Engine.objects.filter(enabled=True, removed_at=None).order_by("name"))

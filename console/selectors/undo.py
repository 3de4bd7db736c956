"""May a job still be undone: what it left is there, and no later job changed the same.

Knows nothing of how the inverse is asked for (`console.services.job_again`). Asked by job_create,
by the forms of an undo and by the button that opens them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce

from console.choices import OPEN_STATES, STORAGE_KINDS, JobKind, JobState
from console.exceptions import Conflict
from console.models import Job
from console.selectors.engines import EngineView
from console.selectors.storage import Change, is_as_left, is_newer

_PAUSES = frozenset({JobKind.PAUSE_GENERATION, JobKind.CONTINUE_GENERATION})
_MEMORY = frozenset({JobKind.RELEASE_MEMORY, JobKind.RESUME_MEMORY})
_STORAGE = STORAGE_KINDS - {JobKind.CLEAR_STORAGE_BACKEND}
# The kinds that change what one of a kind changed. A repair leaves what is desired as it is.
_SAME_THING: Mapping[str, frozenset[JobKind]] = MappingProxyType(
    {
        JobKind.PAUSE_GENERATION: _PAUSES,
        JobKind.RELEASE_MEMORY: _MEMORY,
        **dict.fromkeys(_STORAGE, _STORAGE),
    }
)
# A job in any other state provably had no effect. One that is open may have it yet.
_WITH_EFFECT = OPEN_STATES | {JobState.SUCCEEDED, JobState.PARTIAL, JobState.INTERRUPTED}


def undo_check(job: Job, view: EngineView) -> None:
    """Raise Conflict where an undo on this engine would take back something else."""
    left_check(job, view)
    later_check(job)


def can_be_undone(job: Job, view: EngineView) -> bool:
    """Nothing is in the way; of a job that has an inverse."""
    try:
        undo_check(job, view)
    except Conflict:
        return False
    return True


def left_check(job: Job, view: EngineView) -> None:
    """Raise Conflict unless the engine is the job's and, as far as is known, as the job left it."""
    if job.engine_id != view.engine.pk:
        raise Conflict(f"job {job.pk} cannot be undone: it was of another engine than {view.name}")
    if not _is_as_left(job, view):
        raise Conflict(f"job {job.pk} cannot be undone: what it left was changed since")


def later_check(job: Job) -> None:
    """Raise Conflict where a later job changed the same, or will.

    Final only for whoever holds the engine's row, which is the lock of those who ask for jobs.
    """
    for later in _later(job):
        if job.kind not in STORAGE_KINDS or _aspects(job) & _aspects(later):
            raise Conflict(
                f"job {job.pk} cannot be undone: what it left was changed since, "
                f"by job {later.pk} ({later.kind}, {later.state})"
            )


def _is_as_left(job: Job, view: EngineView) -> bool:
    """The state that is known of the engine is what the job left."""
    if job.kind in STORAGE_KINDS:
        return is_as_left(job, view)
    if view.state is None or is_newer(job, view.state):
        return True
    if job.kind == JobKind.PAUSE_GENERATION:
        return bool(view.state.paused == job.params["pause_mode"])
    if job.kind == JobKind.RELEASE_MEMORY:
        return set(job.params["tags"]) <= set(view.state.released)
    return True


def _later(job: Job) -> QuerySet[Job]:
    """Jobs that an engine carried out after this one, or will; a queue may pass another by."""
    began_at = job.dispatched_at or job.created_at
    return (
        Job.objects.filter(
            engine=job.engine_id,
            kind__in=_SAME_THING.get(job.kind, frozenset()),
            state__in=_WITH_EFFECT,
        )
        .exclude(pk=job.pk)
        .annotate(began_at=Coalesce("dispatched_at", "created_at"))
        .filter(Q(began_at__gt=began_at) | Q(state__in=OPEN_STATES))
        .order_by("began_at", "id")
    )


def _aspects(job: Job) -> frozenset[str]:
    """What of the storage a job changed, or may have: the backend, the policies."""
    change = Change.of(job) if job.state == JobState.SUCCEEDED else None
    if change is not None:
        changed = {"backend": not change.has_same_backend, "policies": change.policies_changed}
        return frozenset(name for name, is_changed in changed.items() if is_changed)
    match job.kind:
        case JobKind.DETACH_STORAGE_BACKEND:
            return frozenset({"backend"})
        case JobKind.SET_CACHE_POLICIES:
            return frozenset({"policies"})
    return frozenset({"backend", "policies"})

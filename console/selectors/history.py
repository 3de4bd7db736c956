"""What earlier jobs of an engine took, as the engine measured it: the basis of estimates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from console.choices import WEIGHT_UPDATES, JobState
from console.models import Engine, Job

LAST_JOBS = 5
LOOK_BACK = 40


@dataclass(frozen=True)
class Span:
    """From the least to the most of `count` measurements, or of an estimate; in its own unit."""

    low: float
    high: float
    count: int = 0

    @staticmethod
    def of(values: Iterable[float]) -> Span | None:
        """None when nothing was measured."""
        known = list(values)
        return Span(min(known), max(known), len(known)) if known else None


@dataclass(frozen=True)
class History:
    """Of the last few jobs that succeeded. None: not known."""

    staged_s: Span | None
    pause_s: Span | None
    held: Span | None


def _numbers(replies: list[dict[str, object]], name: str) -> list[float]:
    found = [reply.get(name) for reply in replies]
    return [float(one) for one in found if isinstance(one, int | float)][:LAST_JOBS]


def history_of(*, engine: Engine, kind: str, mode: str) -> History:
    """Staging by kind; the pause by mode, over all weight updates when it is one."""
    kinds = WEIGHT_UPDATES if kind in WEIGHT_UPDATES else {kind}
    rows: list[tuple[str, str, dict[str, object]]] = list(
        Job.objects.filter(
            engine=engine, kind__in=kinds, state=JobState.SUCCEEDED, reply__isnull=False
        )
        .order_by("-created_at", "-id")
        .values_list("kind", "mode", "reply")[:LOOK_BACK]  # type: ignore[arg-type]  # a reply is an object
    )
    same_kind = [reply for one, _, reply in rows if one == kind]
    same_mode = [reply for _, one, reply in rows if one == mode]
    return History(
        staged_s=Span.of(_numbers(same_kind, "staged_s")),
        pause_s=Span.of(_numbers(same_mode, "pause_s")),
        held=Span.of(_numbers(same_mode, "held_requests")),
    )

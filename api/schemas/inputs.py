"""What the API takes. Unknown fields are refused; numbers are numbers, never strings."""

from __future__ import annotations

import functools
import operator
import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal  # Any: a schema made for each kind
from uuid import UUID

from ninja import Schema
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    StringConstraints,
    create_model,
)

from console.choices import JobKind, JobState
from console.params import PARAMS, JobParams
from console.selectors.audit import FILTER_NAMES, AuditFilter
from console.services.reasons import MAX_REASON_CHARS
from engine.protocol import MAX_TIMEOUT_S

Text = Annotated[
    str, StringConstraints(strict=True, max_length=MAX_REASON_CHARS, pattern=r"^[^\x00]*$")
]


_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]")


def _written(value: object) -> object:
    """pydantic also takes seconds since 1970, which nobody means who sends a year or a number."""
    if not isinstance(value, str) or not _DATE.match(value):
        raise ValueError("must be a date and time with its zone, as 2026-01-31T09:30:00Z")
    return value


def _in_utc(value: datetime) -> datetime:
    """The first and last hours of the calendar may lie beyond it in another zone."""
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("must be between the years 1 and 9999 in UTC") from error


Moment = Annotated[AwareDatetime, BeforeValidator(_written), AfterValidator(_in_utc)]
Flag = Annotated[bool, Field(strict=True)]


class Strict(Schema):
    """Refuses fields that it does not know."""

    model_config = ConfigDict(extra="forbid")


class JobBase(Strict):
    """A job to do, whatever its kind."""

    engine: Annotated[
        str, StringConstraints(strict=True, min_length=1, max_length=63, pattern=r"^[^\x00]*$")
    ]
    reason: Text = ""
    on_conflict: Literal["refuse", "queue"] = "refuse"
    params: JobParams


# None of their fields is required, but one of two is.
_SAY_SOMETHING = frozenset({JobKind.ABORT_REQUESTS, JobKind.SET_CACHE_POLICIES})


def _job_schema(kind: JobKind, params: type[JobParams]) -> Any:
    """The body of one kind. `params` may be left out where nothing in them is required."""
    needed = any(field.is_required() for field in params.model_fields.values())
    needed = needed or kind in _SAY_SOMETHING
    name = f"{params.__name__.removesuffix('Params')}JobIn"
    return create_model(
        name,
        __base__=JobBase,
        __doc__=f"{kind.label}.",
        kind=(Literal[str(kind)], ...),
        params=(params, ...) if needed else (params, params()),
    )


JOB_SCHEMAS = [_job_schema(kind, params) for kind, params in PARAMS.items()]


_AnyJob: Any = functools.reduce(operator.or_, JOB_SCHEMAS)


class JobIn(RootModel[Annotated[_AnyJob, Field(discriminator="kind")]]):
    """A job to do: `kind` says which parameters it has."""


class CreateQuery(Strict):
    """Whether only the plan is asked for; how long to wait for the job's end before answering."""

    dry_run: bool = False
    wait_s: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 0


class UploadIn(Strict):
    """A file of weights that is about to be sent in pieces."""

    name: Annotated[str, StringConstraints(strict=True, max_length=220, pattern=r"^[^\x00]*$")]
    size_bytes: Annotated[int, Field(strict=True, ge=0)]
    sha256: Annotated[str, StringConstraints(strict=True, pattern=r"^[0-9a-f]{64}$")] | None = None


class PieceQuery(Strict):
    """Where a piece begins."""

    offset: Annotated[int, Field(ge=0)]


class CheckpointQuery(Strict):
    """Which folder to check; without it the roots and what is under them."""

    path: Annotated[str, Field(max_length=4096)] = ""


class CancelIn(Strict):
    """Why it is cancelled."""

    reason: Text = ""


class FollowIn(Strict):
    """Why, and what to do when another job holds the engine."""

    reason: Text = ""
    on_conflict: Literal["refuse", "queue"] = "refuse"


class ExtendIn(Strict):
    """By how much the deadline moves; negative for sooner."""

    by_s: Annotated[
        float, Field(strict=True, ge=-MAX_TIMEOUT_S, le=MAX_TIMEOUT_S, allow_inf_nan=False)
    ]


class ForceIn(Strict):
    """Nothing to say."""


class JobQuery(Strict):
    """Filters of the list of jobs."""

    cursor: Annotated[str, Field(max_length=300)] | None = None
    engine: Annotated[str, Field(max_length=63)] | None = None
    state: JobState | None = None
    kind: JobKind | None = None
    actor: Annotated[str, Field(max_length=150, pattern=r"^[^\x00]*$")] = ""
    since: Moment | None = None
    until: Moment | None = None
    open: bool = False


def _word(size: int) -> Any:
    return Annotated[str, StringConstraints(max_length=size, pattern=r"^[^\x00]*$")]


class AuditFilterQuery(Strict):
    """What to look for in the audit log. `action` with a dot at its end means all that begin so."""

    actor: _word(150) = ""  # type: ignore[valid-type]
    token: _word(12) = ""  # type: ignore[valid-type]
    via: Literal["", "ui", "api", "cli", "system"] = ""
    engine: _word(63) = ""  # type: ignore[valid-type]
    kind: _word(32) = ""  # type: ignore[valid-type]
    action: _word(64) = ""  # type: ignore[valid-type]
    result: _word(24) = ""  # type: ignore[valid-type]
    request: _word(64) = ""  # type: ignore[valid-type]
    job: UUID | None = None
    since: Moment | None = None
    until: Moment | None = None

    def chosen(self) -> AuditFilter:
        """As the selector takes it."""
        return AuditFilter(**{name: getattr(self, name) for name in FILTER_NAMES})


class AuditQuery(AuditFilterQuery):
    """A page of what is looked for."""

    cursor: Annotated[str, Field(max_length=300)] | None = None


class AuditExportQuery(AuditFilterQuery):
    """What is exported, and as what."""

    form: Literal["jsonl", "csv"] = "jsonl"


class AuditVerifyQuery(Strict):
    """All of the log again, or what is new since the last time."""

    full: bool = False


class EnginesQuery(Strict):
    """Which part of the fleet. `cursor`: the name of the last engine of the page before."""

    cursor: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9-]*$")] = ""
    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9-]*$")] = ""
    limit: Annotated[int, Field(ge=1, le=500)] = 200


class EventQuery(Strict):
    """From which entry on, and for how long."""

    since: Annotated[int, Field(ge=0, le=10**18)] | None = None
    for_s: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 3600


class WaitQuery(Strict):
    """How long to wait for a job's end before answering."""

    wait_s: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 0

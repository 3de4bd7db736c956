"""What the API takes. Unknown fields are refused; numbers are numbers, never strings."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from ninja import Schema
from pydantic import ConfigDict, Field, StringConstraints

from console.choices import JobState
from console.services.reasons import MAX_REASON_CHARS
from engine.protocol import MAX_TIMEOUT_S

Text = Annotated[
    str, StringConstraints(strict=True, max_length=MAX_REASON_CHARS, pattern=r"^[^\x00]*$")
]
ModeWord = Literal["if_idle", "wait", "drain", "retract", "abort"]


class Strict(Schema):
    """Refuses fields that it does not know."""

    model_config = ConfigDict(extra="forbid")


class FlushParamsIn(Strict):
    """How long to wait for idle, what to do meanwhile, and whether device memory is given back."""

    timeout_s: Annotated[float, Field(strict=True, ge=0, le=MAX_TIMEOUT_S, allow_inf_nan=False)] = (
        60.0
    )
    mode: ModeWord = "wait"
    empty_cache: Annotated[bool, Field(strict=True)] = True


class JobIn(Strict):
    """A job to do."""

    engine: Annotated[
        str, StringConstraints(strict=True, min_length=1, max_length=63, pattern=r"^[^\x00]*$")
    ]
    kind: Literal["flush_cache"]
    params: FlushParamsIn = FlushParamsIn()
    reason: Text = ""
    on_conflict: Literal["refuse", "queue"] = "refuse"


class CancelIn(Strict):
    """Why it is cancelled."""

    reason: Text = ""


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


class AuditQuery(Strict):
    """Filters of the audit log."""

    cursor: Annotated[str, Field(max_length=300)] | None = None
    job: UUID | None = None


class WaitQuery(Strict):
    """How long to wait for a job's end before answering."""

    wait_s: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 0

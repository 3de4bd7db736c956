"""What every form that asks for a job shares: its key, its reason, its confirmation, its answer."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from typing import Protocol

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse

from console.choices import OnConflict, Via
from console.exceptions import ConsoleError, EngineNotFound, IdempotencyMismatch, Invalid
from console.models import Job
from console.pages.shell import see_other
from console.params import JobParams
from console.requests import actor_of
from console.services.job_again import origin_of
from console.services.jobs import JobAsked, job_create
from console.services.reasons import reason_read
from engine.protocol import MAX_TIMEOUT_S

PRESETS_S = (30, 60, 120, 300)


def key_read(key: str) -> str:
    """The form's key as posted; a forged one that no database takes gives way to a new one."""
    return key[:200] if key and key.isascii() and key.isprintable() else str(uuid.uuid4())


def sentence(message: str) -> str:
    """A message as a sentence under a field."""
    return f"{message[:1].upper()}{message[1:]}."


def uuid_read(text: str) -> uuid.UUID:
    """A job's id from a link. Raises Invalid."""
    try:
        return uuid.UUID(text)
    except ValueError as error:
        raise Invalid("a link names a job that is none") from error


def reason_check(reason: str, errors: dict[str, str]) -> str:
    """The reason as it will be recorded; its error in `errors`."""
    if not reason:
        errors["reason"] = "Write a reason; it goes to the audit log."
        return reason
    try:
        return reason_read(reason)
    except Invalid as error:
        errors["reason"] = sentence(error.message)
        return reason


def seconds_check(text: str, errors: dict[str, str]) -> float | None:
    """A deadline as typed; its error in `errors`."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if math.isfinite(seconds) and 0 <= seconds <= MAX_TIMEOUT_S:
        return seconds
    errors["timeout_s"] = f"Seconds, a number from 0 to {MAX_TIMEOUT_S:,.0f}."
    return None


class Asking(Protocol):
    """What every form has that asks for a job."""

    reason: str
    key: str
    errors: dict[str, str]


def answered(
    request: HttpRequest,
    form: Asking,
    *,
    engine: str,
    params: JobParams | None,
    again: Callable[[int], HttpResponse],
    undone: Job | None = None,
) -> HttpResponseBase:
    """On to the job's page; or `again`, the form with its errors: 422 when it has no parameters to
    send, else the refusal's status. `undone` is what the form was opened to take back: refused once
    that was changed, whatever the form asks for by now. Raises EngineNotFound."""
    if params is None:
        return again(422)
    origin = origin_of(undone, params) if undone is not None else None
    return asked_or_again(
        form,
        lambda: job_create(
            engine_name=engine,
            params=params,
            reason=form.reason,
            on_conflict=OnConflict.REFUSE,
            actor=actor_of(request, via=Via.UI),
            idempotency_key=form.key,
            origin=origin,
            takes_back=undone,
        ),
        again,
    )


def asked_or_again(
    form: Asking, ask: Callable[[], JobAsked], again: Callable[[int], HttpResponse]
) -> HttpResponseBase:
    """On to the page of the job that `ask` makes; or `again` with the refusal's status, and the
    refusal among the form's errors. Raises EngineNotFound."""
    try:
        asked = ask()
    except EngineNotFound:
        raise
    except IdempotencyMismatch as error:
        form.errors["form"] = "This form has made a job already. Open that job, or a new form."
        form.errors["holder"] = str(error.facts.get("job", ""))
        return again(error.status)
    except ConsoleError as error:
        form.errors["form"] = f"Refused, nothing was sent: {error.message}."
        form.errors["holder"] = str(error.facts.get("holder") or "")
        return again(error.status)
    return see_other(reverse("job", args=[asked.job.pk]))

"""New flush: the form, its plan, and the job that it asks for."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from console.choices import JobKind, Mode, OnConflict, Via
from console.clock import db_now
from console.exceptions import ConsoleError, EngineNotFound, IdempotencyMismatch, Invalid
from console.pages.shell import page, page_render, see_other
from console.pages.words import nonzero, why_no_change
from console.params import JobParams, params_of
from console.requests import actor_of
from console.selectors.engines import EngineView, engine_get, engine_list
from console.services.jobs import job_create
from console.services.reasons import reason_read
from engine.protocol import MAX_TIMEOUT_S

MODES = (
    (Mode.IF_IDLE, "Only if every rank is idle now; otherwise refused at once, nothing changed."),
    (Mode.WAIT, "New and running requests go on; flush at the first idle moment in time."),
    (Mode.DRAIN, "Hold new requests, let running ones finish, then flush."),
    (
        Mode.RETRACT,
        "Hold new requests; put running ones back in the queue, they resume from prefill.",
    ),
    (Mode.ABORT, "Hold new requests; end running ones with finish_reason abort."),
)
PRESETS_S = (30, 60, 120, 300)


def _key_read(key: str) -> str:
    """The form's key as posted; a forged one that no database takes gives way to a new one."""
    return key[:200] if key and key.isascii() and key.isprintable() else str(uuid.uuid4())


def _sentence(error: Invalid) -> str:
    return f"{error.message[:1].upper()}{error.message[1:]}."


@dataclass
class FlushForm:
    """What was typed, and one error a field. Empty `errors` after `check` means it can be asked."""

    engine: str = ""
    mode: str = Mode.WAIT
    timeout_s: str = "60"
    empty_cache: bool = True
    reason: str = ""
    confirm: str = ""
    key: str = field(default_factory=lambda: str(uuid.uuid4()))
    errors: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(data: Mapping[str, str]) -> FlushForm:
        """As posted."""
        return FlushForm(
            engine=data.get("engine", ""),
            mode=data.get("mode", ""),
            timeout_s=data.get("timeout_s", "").strip(),
            empty_cache="empty_cache" in data,
            reason=data.get("reason", "").strip(),
            confirm=data.get("confirm", "").strip(),
            key=_key_read(data.get("key", "")),
        )

    def check(self) -> JobParams | None:
        """The parameters, or None with `errors` set."""
        if self.mode not in Mode.values:
            self.errors["mode"] = f"Choose one of {', '.join(Mode.values)}."
        if not self.reason:
            self.errors["reason"] = "Write a reason; it goes to the audit log."
        else:
            try:
                self.reason = reason_read(self.reason)
            except Invalid as error:
                self.errors["reason"] = _sentence(error)
        if self.confirm != self.engine:
            self.errors["confirm"] = f"Type {self.engine} to confirm."
        seconds = self._seconds()
        if self.errors or seconds is None:
            return None
        try:
            values = {"timeout_s": seconds, "mode": self.mode, "empty_cache": self.empty_cache}
            return params_of(JobKind.FLUSH_CACHE, values)
        except Invalid as error:
            self.errors["timeout_s"] = _sentence(error)
            return None

    def _seconds(self) -> float | None:
        try:
            seconds = float(self.timeout_s)
        except ValueError:
            seconds = math.nan
        if math.isfinite(seconds) and 0 <= seconds <= MAX_TIMEOUT_S:
            return seconds
        self.errors["timeout_s"] = f"Seconds, a number from 0 to {MAX_TIMEOUT_S:,.0f}."
        return None


@dataclass(frozen=True)
class Plan:
    """What the flush would touch, as of now."""

    view: EngineView
    mode: str

    @property
    def busy(self) -> list[tuple[int, list[tuple[str, int]]]]:
        """Ranks that hold something, with what."""
        found = [(rank.dp_rank, nonzero(rank.places)) for rank in self.view.ranks]
        return [(rank, pairs) for rank, pairs in found if pairs]

    @property
    def cached_tokens(self) -> int:
        """Tokens in the caches that no request uses now, all ranks."""
        kv = [rank.kv for rank in self.view.ranks if rank.kv is not None]
        return sum(one.evictable_pages * one.page_size_tokens for one in kv)

    @property
    def running(self) -> int:
        """Running requests, all ranks."""
        return sum(rank.running for rank in self.view.ranks)

    @property
    def waiting(self) -> int:
        """Waiting requests, all ranks."""
        return sum(rank.waiting for rank in self.view.ranks)

    @property
    def why_not(self) -> str:
        """Why it would be refused now; empty when it would not."""
        return why_no_change(self.view)


def _choose(name: str, views: list[EngineView]) -> EngineView | None:
    return next((view for view in views if view.name == name), views[0] if views else None)


def _form_page(request: HttpRequest, form: FlushForm, *, status: int = 200) -> HttpResponse:
    views = engine_list()
    if form.engine and not any(view.name == form.engine for view in views):
        raise EngineNotFound(f"no engine is named {form.engine!r}")
    chosen = _choose(form.engine, views)
    if chosen is None:
        return redirect("fleet")
    form.engine = chosen.name
    return page_render(
        request,
        "flush.html",
        nav="jobs",
        title="New flush",
        status=status,
        context={
            "form": form,
            "views": views,
            "modes": MODES,
            "presets": PRESETS_S,
            "max_timeout_s": int(MAX_TIMEOUT_S),
            "plan": Plan(chosen, form.mode),
            "asked_at": db_now(),
            "topics": f"engine:{chosen.name}",
        },
    )


@page
@require_http_methods(["GET", "HEAD", "POST"])
def flush(request: HttpRequest) -> HttpResponseBase:
    """The form; posted, a job or the form again with its errors."""
    if request.method != "POST":
        return _form_page(request, FlushForm(engine=request.GET.get("engine", "")))
    form = FlushForm.of(request.POST.dict())
    params = form.check()
    if params is None:
        return _form_page(request, form, status=422)
    try:
        asked = job_create(
            engine_name=form.engine,
            params=params,
            reason=form.reason,
            on_conflict=OnConflict.REFUSE,
            actor=actor_of(request, via=Via.UI),
            idempotency_key=form.key,
        )
    except EngineNotFound:
        raise
    except IdempotencyMismatch as error:
        form.errors["form"] = "This form has made a job already. Open that job, or a new form."
        form.errors["holder"] = str(error.facts.get("job", ""))
        return _form_page(request, form, status=error.status)
    except ConsoleError as error:
        form.errors["form"] = f"Refused, nothing was sent: {error.message}."
        form.errors["holder"] = str(error.facts.get("holder") or "")
        return _form_page(request, form, status=error.status)
    return see_other(reverse("job", args=[asked.job.pk]))


@page
@require_safe
def flush_plan(request: HttpRequest) -> HttpResponse:
    """The plan for other choices, as a partial."""
    mode = request.GET.get("mode", Mode.WAIT)
    if mode not in Mode.values:
        raise Invalid(f"mode must be one of {', '.join(Mode.values)}")
    view = engine_get(name=request.GET.get("engine", ""))
    return render(request, "components/plan.html", {"plan": Plan(view, mode), "asked_at": db_now()})

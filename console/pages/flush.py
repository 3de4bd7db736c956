"""New flush: the form, its plan, and the job that it asks for."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from console.access import Act, Rights
from console.choices import JobKind, Mode
from console.clock import db_now
from console.exceptions import Invalid
from console.pages.asking import (
    PRESETS_S,
    answered,
    key_read,
    reason_check,
    seconds_check,
    sentence,
)
from console.pages.plan_rows import PlanPanel, stand_in
from console.pages.shell import page, page_render
from console.params import JobParams, params_of
from console.requests import rights_in
from console.selectors.engines import EngineView, engine_get, engines_for
from console.selectors.plans import job_plan
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
            key=key_read(data.get("key", "")),
        )

    def check(self) -> JobParams | None:
        """The parameters, or None with `errors` set."""
        if self.mode not in Mode.values:
            self.errors["mode"] = f"Choose one of {', '.join(Mode.values)}."
        self.reason = reason_check(self.reason, self.errors)
        if self.confirm != self.engine:
            self.errors["confirm"] = f"Type {self.engine} to confirm."
        seconds = seconds_check(self.timeout_s, self.errors)
        if self.errors or seconds is None:
            return None
        try:
            values = {"timeout_s": seconds, "mode": self.mode, "empty_cache": self.empty_cache}
            return params_of(JobKind.FLUSH_CACHE, values)
        except Invalid as error:
            self.errors["timeout_s"] = sentence(error.message)
            return None


def _panel(engine_name: str, mode: str, rights: Rights) -> PlanPanel:
    params = stand_in(JobKind.FLUSH_CACHE, mode if mode in Mode.values else Mode.WAIT)
    return PlanPanel(job_plan(engine_name=engine_name, params=params, rights=rights))


def _choose(name: str, views: list[EngineView]) -> EngineView | None:
    return next((view for view in views if view.name == name), views[0] if views else None)


def _form_page(request: HttpRequest, form: FlushForm, *, status: int = 200) -> HttpResponse:
    rights = rights_in(request)
    views = engines_for(Act.FLUSH, rights)
    if form.engine and not any(view.name == form.engine for view in views):
        view = engine_get(name=form.engine, rights=rights)
        rights.require(Act.FLUSH, view.labels)
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
            "panel": _panel(chosen.name, form.mode, rights),
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
    return answered(
        request,
        form,
        engine=form.engine,
        params=form.check(),
        again=lambda status: _form_page(request, form, status=status),
    )


@page
@require_safe
def flush_plan(request: HttpRequest) -> HttpResponse:
    """The plan for other choices, as a partial."""
    mode = request.GET.get("mode", Mode.WAIT)
    if mode not in Mode.values:
        raise Invalid(f"mode must be one of {', '.join(Mode.values)}")
    panel = _panel(request.GET.get("engine", ""), mode, rights_in(request))
    return render(request, "components/job_plan.html", {"panel": panel, "asked_at": db_now()})

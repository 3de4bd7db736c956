"""Register an engine, change its addresses and labels, disable and remove it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from console.access import Act
from console.choices import Via
from console.exceptions import ConsoleError
from console.gateways.keys import console_key_public
from console.labels import labels_parse
from console.models import Engine
from console.pages.asking import sentence
from console.pages.shell import page, page_render, see_other
from console.requests import actor_of, rights_in
from console.selectors.access import labels_of_engine
from console.selectors.engines import engine_named
from console.services.engines import engine_change, engine_register, engine_remove


@dataclass
class EngineForm:
    """What was typed, and what was wrong with it."""

    name: str = ""
    control_address: str = ""
    events_address: str = ""
    curve_key: str = ""
    labels: str = ""
    reason: str = ""
    enabled: bool = True
    errors: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(request: HttpRequest) -> EngineForm:
        """As posted."""
        data = request.POST
        return EngineForm(
            name=data.get("name", "").strip(),
            control_address=data.get("control_address", "").strip(),
            events_address=data.get("events_address", "").strip(),
            curve_key=data.get("curve_key", "").strip(),
            labels=data.get("labels", "").strip(),
            reason=data.get("reason", "").strip(),
            enabled=data.get("enabled") == "on",
        )

    @staticmethod
    def showing(engine: Engine) -> EngineForm:
        """As it is."""
        return EngineForm(
            name=engine.name,
            control_address=engine.control_address,
            events_address=engine.events_address,
            curve_key=engine.curve_key,
            labels=", ".join(f"{key}={value}" for key, value in engine.labels.items()),
            enabled=engine.enabled,
        )

    def labels_read(self) -> dict[str, str]:
        """`key=value` by commas. Raises Invalid."""
        parts = (re.sub(r"\s*=\s*", "=", part.strip(), count=1) for part in self.labels.split(","))
        return labels_parse(filter(None, parts))


def _form_page(
    request: HttpRequest, form: EngineForm, engine: Engine | None, status: int = 200
) -> HttpResponse:
    return page_render(
        request,
        "engine_settings.html",
        nav="fleet",
        title=f"Settings of {engine.name}" if engine else "Register an engine",
        status=status,
        context={"form": form, "engine": engine, "console_key": console_key_public()},
    )


@page
@require_http_methods(["GET", "HEAD", "POST"])
def register(request: HttpRequest) -> HttpResponseBase:
    """The form; posted, the engine's page or the form again."""
    rights_in(request).require(Act.ENGINES)
    if request.method != "POST":
        return _form_page(request, EngineForm(), None)
    form = EngineForm.of(request)
    try:
        made = engine_register(
            name=form.name,
            control_address=form.control_address,
            events_address=form.events_address,
            curve_key=form.curve_key,
            labels=form.labels_read(),
            reason=form.reason,
            actor=actor_of(request, via=Via.UI),
            is_new=True,
            process="web",
        )
    except ConsoleError as error:
        form.errors["form"] = sentence(error.message)
        return _form_page(request, form, None, error.status)
    return see_other(reverse("engine", args=[made.name]))


def _engine(request: HttpRequest, name: str) -> Engine:
    """For whoever may change it. Raises EngineNotFound, Forbidden."""
    rights = rights_in(request)
    found = engine_named(name, rights=rights)
    rights.require(Act.ENGINES, labels_of_engine(found))
    return found


@page
@require_http_methods(["GET", "HEAD", "POST"])
def settings(request: HttpRequest, name: str) -> HttpResponseBase:
    """The form; posted, changed or the form again."""
    engine = _engine(request, name)
    if request.method != "POST":
        return _form_page(request, EngineForm.showing(engine), engine)
    form = EngineForm.of(request)
    form.name = name
    try:
        engine_change(
            name=name,
            enabled=form.enabled,
            labels=form.labels_read(),
            control_address=form.control_address,
            events_address=form.events_address,
            curve_key=form.curve_key,
            reason=form.reason,
            actor=actor_of(request, via=Via.UI),
        )
    except ConsoleError as error:
        form.errors["form"] = sentence(error.message)
        return _form_page(request, form, engine, error.status)
    return see_other(reverse("engine", args=[name]))


@page
@require_POST
def remove(request: HttpRequest, name: str) -> HttpResponseBase:
    """Take it out of the fleet, its name typed to confirm."""
    engine = _engine(request, name)
    form = EngineForm.showing(engine)
    if request.POST.get("confirm", "").strip() != name:
        form.errors["confirm"] = f"Type {name} to confirm."
        return _form_page(request, form, engine, 422)
    try:
        engine_remove(
            name=name,
            reason=request.POST.get("reason", ""),
            actor=actor_of(request, via=Via.UI),
        )
    except ConsoleError as error:
        form.errors["form"] = sentence(error.message)
        return _form_page(request, form, engine, error.status)
    return see_other(reverse("fleet"))

"""Attach a backend, or switch to another: the form, what would be sent, its plan as partials."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from console.access import Act
from console.choices import JobKind, Mode
from console.clock import db_now
from console.models import Job
from console.pages.asking import PRESETS_S, answered, uuid_read
from console.pages.backend_fields import backend_choices
from console.pages.backend_form import MODES, PREFETCH, WRITE, BackendForm
from console.pages.backends import settings_of
from console.pages.job_storage import named
from console.pages.plan_rows import PlanPanel
from console.pages.shell import page, page_render
from console.params import AttachParams, JobParams, params_of
from console.params.settings import NOT_KEPT
from console.requests import rights_in
from console.selectors.engines import EngineView, engine_get
from console.selectors.jobs import job_get
from console.selectors.plans import Plan, job_plan
from console.selectors.storage import policies_of
from console.selectors.undo import undo_check
from engine.protocol import MAX_TIMEOUT_S

UNSEEN = "(secret, told to the engine only)"


@dataclass(frozen=True)
class Preview:
    """What one rank, or every rank, would be sent."""

    whom: str
    text: str


@dataclass(frozen=True)
class PlannedStep:
    """One step of the one job, and what a failure there leads to."""

    title: str
    detail: str
    if_fails: str


def _shown(settings: Mapping[str, object]) -> dict[str, object]:
    return {name: UNSEEN if one == NOT_KEPT else one for name, one in settings.items()}


def previews(params: AttachParams) -> list[Preview]:
    """The settings of all ranks, then of each that has overrides; no secret in any."""
    config = params.config or {}
    found = [("All ranks", config)]
    for rank, one in params.rank_configs.items():
        found.append((f"Rank {rank}", {**config, **one}))
    return [
        Preview(whom, json.dumps(_shown(settings), indent=2, ensure_ascii=False))
        for whom, settings in found
    ]


def steps_planned(plan: Plan, backend: str) -> list[PlannedStep]:
    """What the job does, in order; a switch is one job of five steps."""
    old, count = plan.attached, len(plan.view.ranks)
    stay = f"all {count} ranks stay as they are"
    back = f"{backend} is detached again" + (f", {old.backend} attached again" if old else "")
    hold = {
        "wait": "until every rank is idle at once; requests go on",
        "if_idle": "or refuse: it waits for nobody",
        "drain": "hold new requests, let running ones finish",
        "retract": "hold new requests, put running ones back in the queue",
        "abort": "hold new requests, end running ones",
    }
    found = [
        PlannedStep(
            f"Probe {backend}",
            "open it, then write, read, compare and delete one page on every rank, beside serving",
            stay,
        ),
        PlannedStep("Drain", hold.get(plan.mode, ""), stay),
    ]
    if old is not None:
        found.append(
            PlannedStep(
                f"Detach {named(old)}", "finish transfers, close; what it holds stays", back
            )
        )
    return [
        *found,
        PlannedStep(f"Attach {backend}", "make it visible, hash pages of before", back),
        PlannedStep("Resume", "release held requests in order", "released whatever the outcome"),
    ]


def _command(request: HttpRequest, form: BackendForm, params: JobParams | None) -> str:
    """The same request by hand; whoever runs it writes the secrets in."""
    host = f"{request.scheme}://{request.get_host()}"
    stored = params.stored() if params is not None else {"backend": form.backend}
    stored = {name: one for name, one in stored.items() if one not in (None, "", {}, False)}
    body = {
        "engine": form.engine,
        "kind": str(JobKind.ATTACH_STORAGE_BACKEND),
        "params": stored,
        "reason": form.reason,
    }
    text = json.dumps(body, indent=1, ensure_ascii=False).replace(NOT_KEPT, "…")
    return (
        f"curl -X POST '{host}/api/v1/jobs?dry_run=true' \\\n"
        '  -H "Authorization: Bearer $QUIESCE_TOKEN" \\\n'
        '  -H "Content-Type: application/json" \\\n'
        f"  -d '{text.replace(chr(39), chr(39) + chr(92) + chr(39) * 2)}'\n"
        "# without ?dry_run=true it is done"
    )


@sensitive_variables()
def _side(request: HttpRequest, form: BackendForm, view: EngineView) -> dict[str, object]:
    """The right column: preview, steps, plan and command of what is typed so far."""
    trial = BackendForm(
        **{
            **form.__dict__,
            "errors": {},
            "overrides": [type(one)(**{**one.__dict__, "error": ""}) for one in form.overrides],
        }
    )
    params = trial.params()
    if params is not None:
        panel = PlanPanel(job_plan(engine_name=view.name, rights=rights_in(request), params=params))
    else:
        plan = job_plan(
            engine_name=view.name, rights=rights_in(request), params=_planned(form), looks=False
        )
        overrides = next((one.error for one in trial.overrides if one.error), "")
        name, words = next(iter(trial.errors.items()))
        words = overrides or words if name == "overrides" else words
        error = f"{name}: {words[:1].lower()}{words[1:]}"
        panel = PlanPanel(plan, error=error)
    return {
        "panel": panel,
        "asked_at": db_now(),
        "previews": previews(params) if isinstance(params, AttachParams) else [],
        "steps": steps_planned(panel.plan, form.backend),
        "command": _command(request, form, params),
        "form": form,
    }


def _planned(form: BackendForm) -> JobParams:
    """Parameters to plan with while the settings are not right yet: settings known by some id."""
    mode = form.mode if form.mode in {str(mode) for mode, _ in MODES} else Mode.WAIT
    values = {"backend": form.backend, "config_id": "0" * 16, "replace": form.replace}
    return params_of(JobKind.ATTACH_STORAGE_BACKEND, {**values, "mode": str(mode)})


@sensitive_variables()
def _form_page(
    request: HttpRequest, form: BackendForm, view: EngineView, *, status: int = 200
) -> HttpResponse:
    return page_render(
        request,
        "backend_attach.html",
        nav="backends",
        title=f"{'Switch the backend of' if form.replace else 'Attach a backend to'} {view.name}",
        status=status,
        context={
            **_side(request, form, view),
            "view": view,
            "now_named": named(form.now),
            "known_settings": settings_of(form.known) if form.known else [],
            "choices": backend_choices(view),
            "modes": [(mode, text.format(act=form.act)) for mode, text in MODES],
            "write_policies": WRITE,
            "prefetch_policies": PREFETCH,
            "policies": policies_of(view.state.policies) if view.state else {},
            "presets": PRESETS_S,
            "max_timeout_s": int(MAX_TIMEOUT_S),
            "topics": f"engine:{view.name}",
        },
    )


def _undone(request: HttpRequest, form: BackendForm) -> Job | None:
    """A link from a job's page fixes the settings to those that the engine had; that job."""
    wanted = request.GET.get("undo", "")
    if not wanted:
        return None
    job = job_get(job_id=uuid_read(wanted), rights=rights_in(request))
    form.undo(job)
    return job


def _engine(request: HttpRequest, name: str) -> EngineView:
    """The engine, for whoever may attach a backend to it. Raises EngineNotFound, Forbidden."""
    view = engine_get(name=name, rights=rights_in(request))
    rights_in(request).require(Act.STORAGE, view.labels)
    return view


@sensitive_post_parameters()
@sensitive_variables()
@page
@require_http_methods(["GET", "HEAD", "POST"])
def attach(request: HttpRequest, name: str) -> HttpResponseBase:
    """The form; posted, a job or the form again. A secret that was typed is not shown again."""
    view = _engine(request, name)
    if request.method != "POST":
        form = BackendForm.begin(view, request.GET.get("backend", ""))
        undone = _undone(request, form)
        if undone is not None:
            undo_check(undone, view)
        return _form_page(request, form, view)
    form = BackendForm.of(view, request.POST)
    undone = _undone(request, form)
    return answered(
        request,
        form,
        engine=name,
        params=form.check(),
        again=lambda status: _form_page(request, form, view, status=status),
        undone=undone,
    )


@sensitive_post_parameters()
@page
@require_POST
def plan(request: HttpRequest, name: str) -> HttpResponse:
    """Preview and plan for what is typed, as a partial; the script sends no secret along."""
    view = _engine(request, name)
    form = BackendForm.of(view, request.POST)
    _undone(request, form)
    return render(request, "components/backend_side.html", _side(request, form, view))


@page
@require_safe
def fields(request: HttpRequest, name: str) -> HttpResponse:
    """The settings of another backend, as a partial."""
    view = _engine(request, name)
    form = BackendForm.begin(view, request.GET.get("backend", ""))
    return render(request, "components/backend_fields.html", {"form": form, "view": view})

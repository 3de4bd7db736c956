"""New weight update, and return to earlier weights: one form, its source and plan as partials."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from console.access import Act, Rights
from console.clock import db_now
from console.exceptions import Conflict, EngineNotFound, NotFound
from console.pages.asking import PRESETS_S, answered
from console.pages.plan_rows import PlanPanel, stand_in
from console.pages.shell import page, page_render
from console.pages.weights_form import MODES, SOURCES, WeightsForm, folders_of
from console.requests import rights_in
from console.selectors.engines import EngineView, engine_get, engines_for
from console.selectors.plans import job_plan
from console.selectors.uploads import uploads_whole
from console.selectors.weights import Weights, lineage_of, previous_of
from engine.protocol import MAX_TIMEOUT_S


def _panel(form: WeightsForm, view: EngineView, rights: Rights) -> PlanPanel:
    """The plan of what is typed; of a stand-in, saying why, while that is not right yet."""
    trial = WeightsForm(**{**form.__dict__, "errors": {}})
    params = trial.params(view)
    if params is not None:
        return PlanPanel(job_plan(engine_name=view.name, rights=rights, params=params))
    mode = form.mode if form.mode in {str(mode) for mode, _ in MODES} else ""
    plan = job_plan(
        engine_name=view.name, rights=rights, params=stand_in(form.kind, mode), looks=False
    )
    return PlanPanel(plan, error=next(iter(trial.errors.values())))


def _source(form: WeightsForm, view: EngineView, rights: Rights) -> dict[str, object]:
    """What the chosen source's part of the form needs."""
    found: dict[str, object] = {"form": form, "view": view}
    if form.source == "disk" and form.returning is None:
        found["folders"] = folders_of(view)
    if form.source == "distributed":
        found["world_default"] = str(len(view.ranks) + 1)
    if form.source == "tensors":
        found["uploads"] = uploads_whole(rights=rights)
    return found


def _form_page(
    request: HttpRequest, form: WeightsForm, view: EngineView, *, status: int = 200
) -> HttpResponse:
    return page_render(
        request,
        "weights_new.html",
        nav="weights",
        title=form.title,
        status=status,
        context={
            **_source(form, view, rights_in(request)),
            "views": engines_for(Act.WEIGHTS, rights_in(request)),
            "sources": SOURCES,
            "modes": MODES,
            "presets": PRESETS_S,
            "max_timeout_s": int(MAX_TIMEOUT_S),
            "panel": _panel(form, view, rights_in(request)),
            "served": Weights.of(view.state.weights) if view.state else None,
            "asked_at": db_now(),
            "topics": f"engine:{view.name}",
        },
    )


def _answer(request: HttpRequest, form: WeightsForm, view: EngineView) -> HttpResponseBase:
    """A posted form: the job's page, or the form again with its errors."""
    return answered(
        request,
        form,
        engine=form.engine,
        params=form.check(view),
        again=lambda status: _form_page(request, form, view, status=status),
    )


@page
@require_http_methods(["GET", "HEAD", "POST"])
def weights_new(request: HttpRequest) -> HttpResponseBase:
    """The form; posted, a job or the form again."""
    is_posted = request.method == "POST"
    form = WeightsForm.of(request.POST if is_posted else request.GET, is_posted=is_posted)
    if not form.engine:
        views = engines_for(Act.WEIGHTS, rights_in(request))
        if not views:
            return redirect("fleet")
        form.engine = views[0].name
    view = _engine(request, form.engine)
    return _answer(request, form, view) if is_posted else _form_page(request, form, view)


def _engine(request: HttpRequest, name: str) -> EngineView:
    """The engine, for whoever may update its weights. Raises EngineNotFound, Forbidden."""
    view = engine_get(name=name, rights=rights_in(request))
    rights_in(request).require(Act.WEIGHTS, view.labels)
    return view


def _earlier(view: EngineView, wanted: str) -> Weights:
    """The weights that `version@checksum` names, or those before the present ones.

    Raises NotFound, Conflict for weights of which no file was kept.
    """
    found: Weights | None
    if wanted:
        pushes = lineage_of([view.engine.pk])
        known = [one.weights for one in pushes if one.weights is not None and one.is_settled]
        before = previous_of(view)
        known += [before] if before is not None else []
        matching = [one for one in known if f"{one.version}@{one.checksum}" == wanted]
        found = next((one for one in matching if one.path), next(iter(matching), None))
    else:
        found = previous_of(view)
    if found is None:
        raise NotFound(f"no job of this console says what {view.name} served before")
    if found.why_no_return:
        raise Conflict(found.why_no_return)
    return found


@page
@require_http_methods(["GET", "HEAD", "POST"])
def weights_return(request: HttpRequest, name: str) -> HttpResponseBase:
    """Return to earlier weights: a new update from the folder that they came from."""
    view = _engine(request, name)
    is_posted = request.method == "POST"
    form = WeightsForm.of(request.POST if is_posted else request.GET, is_posted=is_posted)
    form.engine, form.source = view.name, "disk"
    form.returning = _earlier(view, request.GET.get("version", ""))
    form.weight_version = form.returning.version
    return _answer(request, form, view) if is_posted else _form_page(request, form, view)


def _of_query(request: HttpRequest) -> tuple[WeightsForm, EngineView]:
    form = WeightsForm.of(request.GET, is_posted="engine" in request.GET and "key" in request.GET)
    if not form.engine:
        raise EngineNotFound("no engine is named")
    view = _engine(request, form.engine)
    wanted = request.GET.get("version", "")
    if wanted:
        form.returning, form.source = _earlier(view, wanted), "disk"
    return form, view


@page
@require_safe
def weights_plan(request: HttpRequest) -> HttpResponse:
    """The plan for other choices, as a partial."""
    form, view = _of_query(request)
    context = {"panel": _panel(form, view, rights_in(request)), "asked_at": db_now()}
    return render(request, "components/job_plan.html", context)


@page
@require_safe
def weights_source(request: HttpRequest) -> HttpResponse:
    """The fields of another source, as a partial."""
    form, view = _of_query(request)
    return render(
        request, "components/weights_source.html", _source(form, view, rights_in(request))
    )

"""The small forms: pause, continue, release, resume, abort, repair, and a name for the weights."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from django.http import HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_http_methods, require_safe

from console.access import KIND_ACTS, Rights
from console.choices import STORAGE_KINDS, WAITING_KINDS, JobKind, Mode
from console.clock import db_now
from console.exceptions import Conflict, Invalid, NotFound
from console.models import Job
from console.pages.asking import (
    PRESETS_S,
    answered,
    key_read,
    reason_check,
    seconds_check,
    sentence,
    uuid_read,
)
from console.pages.job_storage import undo_reason
from console.pages.kinds import KindWords, kind_words
from console.pages.operate_kinds import EFFECTS, MODES, Choice
from console.pages.plan_rows import PlanPanel, stand_in
from console.pages.shell import page, page_render
from console.params import JobParams, params_of
from console.requests import rights_in
from console.selectors.engines import EngineView, engine_get
from console.selectors.jobs import job_get
from console.selectors.plans import job_plan
from console.selectors.storage import Undo, policies_of, undo_of
from console.selectors.undo import undo_check
from console.templatetags.q_tags import short
from engine.protocol import MAX_TIMEOUT_S


@dataclass
class OperateForm:
    """What was typed, and one error a field."""

    kind: str
    engine: str
    values: dict[str, list[str]] = field(default_factory=dict)
    mode: str = Mode.WAIT
    timeout_s: str = "60"
    reason: str = ""
    confirm: str = ""
    key: str = field(default_factory=lambda: str(uuid.uuid4()))
    errors: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(kind: str, engine: str, data: QueryDict | None) -> OperateForm:
        """As sent; what was not sent at all has its default."""
        form = OperateForm(kind, engine)
        for choice in EFFECTS[kind][1]:
            is_list = choice.is_many or choice.is_flag
            default = choice.default.split() if is_list else [choice.default]
            form.values[choice.name] = default if data is None else data.getlist(choice.name)
        if data is not None:
            form.mode = data.get("mode", form.mode)
            form.timeout_s = data.get("timeout_s", form.timeout_s).strip()
            form.reason = data.get("reason", "").strip()
            form.confirm = data.get("confirm", "").strip()
            form.key = key_read(data.get("key", ""))
        return form

    @property
    def words(self) -> KindWords:
        """Its name, title and class."""
        return kind_words(self.kind)

    @property
    def effect(self) -> str:
        """The sentence of what it does."""
        return EFFECTS[self.kind][0]

    @property
    def waits(self) -> bool:
        """True for what has a mode and a deadline."""
        return self.kind in WAITING_KINDS

    @property
    def is_storage(self) -> bool:
        """True for what belongs to the engine's storage backend."""
        return self.kind in STORAGE_KINDS

    @property
    def is_forced(self) -> bool:
        """A detach that gives up what is in flight."""
        return bool(self.values.get("force"))

    @property
    def may_be_typed(self) -> bool:
        """The engine's name may have to be typed, by what else is chosen."""
        return self.words.is_typed or "force" in self.values

    @property
    def is_typed(self) -> bool:
        """The engine's name must be typed to confirm."""
        return self.words.is_typed or self.is_forced

    def begin(self, view: EngineView) -> None:
        """Policies begin as they are now."""
        now = policies_of(view.state.policies) if view.state is not None else {}
        for choice in EFFECTS[self.kind][1]:
            if choice.is_policy:
                self.values[choice.name] = [now.get(choice.name, choice.options[0][0])]

    def undo(self, job: Job) -> Undo:
        """What it takes back of `job`. Raises Conflict where that is nothing."""
        undo = undo_of(job)
        if undo is None or undo.kind != self.kind or job.engine.name != self.engine:
            raise Conflict(f"job {short(job.pk)} has nothing that {self.kind} would undo")
        return undo

    def prefill(self, job: Job) -> None:
        """Begin as the undo of `job`."""
        undo = self.undo(job)
        for name, word in undo.policies.items():
            self.values[name] = [word]
        self.reason = undo_reason(job)

    @property
    def fields(self) -> list[tuple[Choice, list[str], str]]:
        """(field, what is chosen, its error)."""
        return [
            (choice, self.values.get(choice.name, []), self.errors.get(choice.name, ""))
            for choice in EFFECTS[self.kind][1]
        ]

    def params(self) -> JobParams | None:
        """The parameters; None with `errors` set."""
        asked: dict[str, object] = {}
        for choice in EFFECTS[self.kind][1]:
            chosen = self.values[choice.name]
            asked[choice.name] = chosen if choice.is_many else "".join(chosen[:1]).strip()
            if choice.is_flag:
                asked[choice.name] = bool(chosen)
        if self.kind == JobKind.ABORT_REQUESTS:
            asked["abort_all"] = not asked["rid"]
        if self.waits and not self.is_forced:
            seconds = seconds_check(self.timeout_s, self.errors)
            if seconds is None:
                return None
            asked |= {"mode": self.mode, "timeout_s": seconds}
        try:
            return params_of(self.kind, asked)
        except Invalid as error:
            path = str(error.facts.get("field") or "")
            place = path.partition(".")[0] or ("timeout_s" if self.waits else "form")
            self.errors[place] = sentence(error.message.removeprefix(f"{path}: "))
            return None

    def check(self) -> JobParams | None:
        """The parameters of a form that may be sent."""
        params = self.params()
        self.reason = reason_check(self.reason, self.errors)
        if self.is_typed and self.confirm != self.engine:
            self.errors["confirm"] = f"Type {self.engine} to confirm."
        return None if self.errors else params


def _panel(form: OperateForm, rights: Rights) -> PlanPanel:
    trial = OperateForm(**{**form.__dict__, "errors": {}})
    params = trial.params()
    if params is not None:
        return PlanPanel(job_plan(engine_name=form.engine, rights=rights, params=params))
    plan = job_plan(engine_name=form.engine, rights=rights, params=stand_in(form.kind), looks=False)
    return PlanPanel(plan, error=next(iter(trial.errors.values())))


def _form_page(
    request: HttpRequest, form: OperateForm, view: EngineView, *, status: int = 200
) -> HttpResponse:
    return page_render(
        request,
        "operate.html",
        nav="backends" if form.is_storage else "fleet",
        title=f"{form.words.title} {form.engine}",
        status=status,
        context={
            "form": form,
            "view": view,
            "modes": MODES,
            "presets": PRESETS_S,
            "max_timeout_s": int(MAX_TIMEOUT_S),
            "panel": _panel(form, rights_in(request)),
            "asked_at": db_now(),
            "topics": f"engine:{view.name}",
        },
    )


def _kind(kind: str) -> JobKind:
    if kind not in EFFECTS:
        raise NotFound(f"there is no form for {kind}")
    return JobKind(kind)


@page
@require_http_methods(["GET", "HEAD", "POST"])
def operate(request: HttpRequest, name: str, kind: str) -> HttpResponseBase:
    """The form; posted, a job or the form again with its errors."""
    rights = rights_in(request)
    view = engine_get(name=name, rights=rights)
    rights.require(KIND_ACTS[_kind(kind)], view.labels)
    form = OperateForm.of(kind, name, request.POST if request.method == "POST" else None)
    wanted = request.GET.get("undo", "")
    undone = job_get(job_id=uuid_read(wanted), rights=rights) if wanted else None
    if request.method != "POST":
        form.begin(view)
        if undone is not None:
            form.prefill(undone)
            undo_check(undone, view)
        return _form_page(request, form, view)
    if undone is not None:
        form.undo(undone)
    return answered(
        request,
        form,
        engine=name,
        params=form.check(),
        again=lambda status: _form_page(request, form, view, status=status),
        undone=undone,
    )


@page
@require_safe
def operate_plan(request: HttpRequest, name: str, kind: str) -> HttpResponse:
    """The plan for other choices, as a partial."""
    form = OperateForm.of(_kind(kind), name, request.GET)
    context = {"panel": _panel(form, rights_in(request)), "asked_at": db_now()}
    return render(request, "components/job_plan.html", context)

"""The small forms: pause, continue, release, resume, abort, repair, and a name for the weights."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from django.http import HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_http_methods, require_safe

from console.choices import WAITING_KINDS, JobKind, Mode
from console.clock import db_now
from console.exceptions import Invalid, NotFound
from console.pages.asking import PRESETS_S, ask, key_read, reason_check, seconds_check, sentence
from console.pages.kinds import KindWords, kind_words
from console.pages.plan_rows import PlanPanel, stand_in
from console.pages.shell import page, page_render
from console.params import JobParams, params_of
from console.selectors.engines import EngineView, engine_get
from console.selectors.plans import job_plan
from engine.protocol import MAX_TIMEOUT_S

MODES = (
    (Mode.IF_IDLE, "Only if every rank is idle now; otherwise refused at once, nothing changed."),
    (Mode.WAIT, "New and running requests go on; at the first moment every rank is idle in time."),
    (Mode.DRAIN, "Hold new requests and let running ones finish first."),
    (Mode.RETRACT, "Hold new requests; put running ones back in the queue."),
    (Mode.ABORT, "Hold new requests; end running ones with finish_reason abort."),
)


@dataclass(frozen=True)
class Choice:
    """One field: its name, its options with their effects, and what is chosen at first."""

    name: str
    label: str
    options: tuple[tuple[str, str], ...] = ()  # radio buttons; none: a line of text
    hint: str = ""
    default: str = ""
    is_many: bool = False  # tick boxes


_TAGS = Choice(
    name="tags",
    label="Memory",
    options=(("kv_cache", "the KV cache"), ("weights", "the weights, and their contents")),
    default="kv_cache weights",
    is_many=True,
)
_EFFECTS: Mapping[str, tuple[str, tuple[Choice, ...]]] = MappingProxyType(
    {
        JobKind.PAUSE_GENERATION: (
            "No rank steps until you continue. New requests are held in order.",
            (
                Choice(
                    "pause_mode",
                    "Running requests",
                    (
                        ("retract", "go back in the queue; their KV is given up"),
                        ("in_place", "stay as they are, with their KV"),
                        ("abort", "end with finish_reason abort, and so do waiting ones"),
                    ),
                    default="retract",
                ),
            ),
        ),
        JobKind.CONTINUE_GENERATION: (
            "Every rank steps again; held requests are released in order.",
            (),
        ),
        JobKind.ABORT_REQUESTS: (
            "Ends one request, or all of them, now; also while another operation waits.",
            (
                Choice("rid", "Request id", hint="exactly as the engine knows it; empty: all"),
                Choice("message", "Message", hint="its client reads it", default="Aborted"),
            ),
        ),
        JobKind.RELEASE_MEMORY: (
            "Gives memory back to the machine. Nothing is served until all of it is resumed.",
            (_TAGS,),
        ),
        JobKind.RESUME_MEMORY: (
            "Takes memory again. Weights come back without contents: nothing is served until an "
            "update brings some.",
            (_TAGS,),
        ),
        JobKind.REPAIR: (
            "Brings every living rank to the weights that the engine is to serve. Requests reach "
            "a rank again once it proves them.",
            (),
        ),
        JobKind.UPDATE_WEIGHT_VERSION: (
            "Names the weights that are served. No tensor, request or cache is touched.",
            (Choice("new_version", "New version", hint="1 to 128 characters"),),
        ),
    }
)


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
        for choice in _EFFECTS[kind][1]:
            default = choice.default.split() if choice.is_many else [choice.default]
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
        return _EFFECTS[self.kind][0]

    @property
    def waits(self) -> bool:
        """True for what has a mode and a deadline."""
        return self.kind in WAITING_KINDS

    @property
    def fields(self) -> list[tuple[Choice, list[str], str]]:
        """(field, what is chosen, its error)."""
        return [
            (choice, self.values.get(choice.name, []), self.errors.get(choice.name, ""))
            for choice in _EFFECTS[self.kind][1]
        ]

    def params(self) -> JobParams | None:
        """The parameters; None with `errors` set."""
        asked: dict[str, object] = {}
        for choice in _EFFECTS[self.kind][1]:
            chosen = self.values[choice.name]
            asked[choice.name] = chosen if choice.is_many else "".join(chosen[:1]).strip()
        if self.kind == JobKind.ABORT_REQUESTS:
            asked["abort_all"] = not asked["rid"]
        if self.waits:
            seconds = seconds_check(self.timeout_s, self.errors)
            if seconds is None:
                return None
            asked |= {"mode": self.mode, "timeout_s": seconds}
        try:
            return params_of(self.kind, asked)
        except Invalid as error:
            path = str(error.facts.get("field") or "")
            place = path.partition(".")[0] or "timeout_s"
            self.errors[place] = sentence(error.message.removeprefix(f"{path}: "))
            return None

    def check(self) -> JobParams | None:
        """The parameters of a form that may be sent."""
        params = self.params()
        self.reason = reason_check(self.reason, self.errors)
        if self.words.is_class_c and self.confirm != self.engine:
            self.errors["confirm"] = f"Type {self.engine} to confirm."
        return None if self.errors else params


def _panel(form: OperateForm) -> PlanPanel:
    trial = OperateForm(**{**form.__dict__, "errors": {}})
    params = trial.params()
    if params is not None:
        return PlanPanel(job_plan(engine_name=form.engine, params=params))
    plan = job_plan(engine_name=form.engine, params=stand_in(form.kind), looks=False)
    return PlanPanel(plan, error=next(iter(trial.errors.values())))


def _form_page(
    request: HttpRequest, form: OperateForm, view: EngineView, *, status: int = 200
) -> HttpResponse:
    return page_render(
        request,
        "operate.html",
        nav="fleet",
        title=f"{form.words.title} {form.engine}",
        status=status,
        context={
            "form": form,
            "view": view,
            "modes": MODES,
            "presets": PRESETS_S,
            "max_timeout_s": int(MAX_TIMEOUT_S),
            "panel": _panel(form),
            "asked_at": db_now(),
            "topics": f"engine:{view.name}",
        },
    )


def _kind(kind: str) -> str:
    if kind not in _EFFECTS:
        raise NotFound(f"there is no form for {kind}")
    return kind


@page
@require_http_methods(["GET", "HEAD", "POST"])
def operate(request: HttpRequest, name: str, kind: str) -> HttpResponseBase:
    """The form; posted, a job or the form again with its errors."""
    view = engine_get(name=name)
    form = OperateForm.of(_kind(kind), name, request.POST if request.method == "POST" else None)
    if request.method != "POST":
        return _form_page(request, form, view)
    params = form.check()
    if params is None:
        return _form_page(request, form, view, status=422)
    answer = ask(
        request,
        engine=name,
        params=params,
        reason=form.reason,
        key=form.key,
        errors=form.errors,
    )
    return _form_page(request, form, view, status=answer) if isinstance(answer, int) else answer


@page
@require_safe
def operate_plan(request: HttpRequest, name: str, kind: str) -> HttpResponse:
    """The plan for other choices, as a partial."""
    form = OperateForm.of(_kind(kind), name, request.GET)
    context = {"panel": _panel(form), "asked_at": db_now()}
    return render(request, "components/job_plan.html", context)

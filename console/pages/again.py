"""The form that asks for a job again: what was recorded, the plan as of now, a reason, a name."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_http_methods

from console.access import KIND_ACTS, Rights
from console.choices import JobKind, Via
from console.clock import db_now
from console.exceptions import Conflict
from console.models import Job
from console.pages.asking import asked_or_again, key_read, reason_check
from console.pages.kinds import asked_of, job_title, kind_words
from console.pages.plan_rows import PlanPanel
from console.pages.shell import page, page_render
from console.params.registry import params_from
from console.requests import actor_of, rights_in
from console.selectors.access import labels_of_engine
from console.selectors.jobs import job_get
from console.selectors.plans import job_plan
from console.services.job_again import job_retry, why_no_retry
from console.templatetags.access_tags import denied_attrs
from console.templatetags.q_tags import icon, short


@dataclass
class RetryForm:
    """What was typed, and one error a field."""

    reason: str
    confirm: str = ""
    key: str = field(default_factory=lambda: str(uuid.uuid4()))
    errors: dict[str, str] = field(default_factory=dict)


def retry_link(job: Job, rights: Rights) -> SafeString:
    """The button that opens the form; nothing for a job that is not retried."""
    if why_no_retry(job):
        return SafeString("")
    url = reverse("job-retry", args=[job.pk])
    why = rights.why_denied(KIND_ACTS[JobKind(job.kind)], labels_of_engine(job.engine))
    return format_html(
        '<a class="btn btn-q" href="{}"{}>{}Retry…</a>', url, denied_attrs(why), icon("refresh")
    )


def _form_page(
    request: HttpRequest, job: Job, form: RetryForm, *, status: int = 200
) -> HttpResponse:
    panel = PlanPanel(
        job_plan(
            engine_name=job.engine.name,
            params=params_from(job.kind, job.params),
            rights=rights_in(request),
        )
    )
    return page_render(
        request,
        "again.html",
        nav="jobs",
        title=f"Retry job {short(job.pk)}",
        status=status,
        context={
            "job": job,
            "short": short(job.pk),
            "job_title": job_title(job),
            "asked": asked_of(job),
            "words": kind_words(job.kind),
            "form": form,
            "panel": panel,
            "num_ranks": len(panel.plan.view.ranks),
            "asked_at": db_now(),
        },
    )


@page
@require_http_methods(["GET", "HEAD", "POST"])
def retry(request: HttpRequest, job_id: UUID) -> HttpResponseBase:
    """The form; posted, a linked job or the form again with its errors."""
    job = job_get(job_id=job_id, rights=rights_in(request))
    if why_no_retry(job):
        raise Conflict(f"job {short(job.pk)} is {job.phase or job.state}; it is not retried")
    rights_in(request).require(KIND_ACTS[JobKind(job.kind)], labels_of_engine(job.engine))
    if request.method != "POST":
        return _form_page(request, job, RetryForm(reason=f"Retry of job {short(job.pk)}"))
    data = request.POST
    form = RetryForm(
        reason=data.get("reason", "").strip(),
        confirm=data.get("confirm", "").strip(),
        key=key_read(data.get("key", "")),
    )
    form.reason = reason_check(form.reason, form.errors)
    if kind_words(job.kind).is_typed and form.confirm != job.engine.name:
        form.errors["confirm"] = f"Type {job.engine.name} to confirm."
    if form.errors:
        return _form_page(request, job, form, status=422)
    return asked_or_again(
        form,
        lambda: job_retry(
            job_id=job_id,
            actor=actor_of(request, via=Via.UI),
            reason=form.reason,
            idempotency_key=form.key,
        ),
        lambda status: _form_page(request, job, form, status=status),
    )

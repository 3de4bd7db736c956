"""The command palette's lines: places, engines, jobs and forms. It opens them; it runs nothing."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from console.access import Rights
from console.pages.kinds import kind_words
from console.pages.shell import page
from console.pages.words import engine_word, job_word
from console.requests import rights_in
from console.selectors.engines import engine_list
from console.selectors.jobs import job_list, jobs_open
from console.templatetags.q_tags import short

MAX_OF_A_KIND = 6


@dataclass(frozen=True)
class Option:
    """One line."""

    group: str
    icon: str
    text: str
    hint: str
    href: str
    also: str = ""  # found by this too


def _all(rights: Rights) -> list[Option]:
    open_jobs = jobs_open(rights=rights)
    needs = [
        Option(
            "Needs you",
            "question-mark" if job_word(job) == "unknown" else "hourglass-empty",
            f"Job {short(job.pk)} · {kind_words(job.kind).name} {job.engine.name}",
            job_word(job),
            reverse("job", args=[job.pk]),
            str(job.pk),
        )
        for job in open_jobs
    ]
    views = engine_list(rights=rights)
    engines = [
        Option(
            "Engines", "server", view.name, engine_word(view), reverse("engine", args=[view.name])
        )
        for view in views
    ]
    actions = (
        [
            Option(
                "Actions",
                "droplet-off",
                f"Flush {view.name}…",
                "opens the plan, runs nothing",
                f"{reverse('flush')}?engine={view.name}",
            )
            for view in views
        ]
        + [
            Option(
                "Actions",
                "versions",
                f"Update weights of {view.name}…",
                "opens the plan, runs nothing",
                f"{reverse('weights-new')}?engine={view.name}",
            )
            for view in views
        ]
        + [
            Option(
                "Actions",
                "plug-connected",
                f"Attach or switch the backend of {view.name}…",
                "opens the plan, runs nothing",
                reverse("backend-attach", args=[view.name]),
            )
            for view in views
        ]
    )
    places = [
        Option("Places", "server", "Go to Fleet", "g f", reverse("fleet")),
        Option("Places", "list-check", "Go to Jobs", "g j", reverse("jobs")),
        Option("Places", "versions", "Go to Weights", "g w", reverse("weights")),
        Option("Places", "database", "Go to Backends", "g b", reverse("backends")),
        Option("Places", "shield-check", "Go to Audit", "g a", reverse("audit")),
        Option("Places", "hourglass-empty", "Go to Pending", "g p", reverse("pending")),
        Option("Places", "key", "Go to API tokens", "", reverse("tokens")),
        Option("Places", "users", "Go to Users and roles", "", reverse("users")),
    ]
    known = {job.pk for job in open_jobs}
    recent = [
        Option(
            "Recent jobs",
            "list-check",
            f"Job {short(job.pk)} · {kind_words(job.kind).name} {job.engine.name}",
            job_word(job),
            reverse("job", args=[job.pk]),
            str(job.pk),
        )
        for job in job_list(rights=rights, limit=20).items
        if job.pk not in known
    ]
    return [*needs, *engines, *actions, *places, *recent]


@page
@require_safe
def palette(request: HttpRequest) -> HttpResponse:
    """Lines whose text holds every word of `q`, a few of a kind."""
    wanted = request.GET.get("q", "")[:100].lower().split()
    shown: list[Option] = []
    counts: dict[str, int] = {}
    for option in _all(rights_in(request)):
        text = f"{option.text} {option.hint} {option.also}".lower()
        if all(word in text for word in wanted) and counts.get(option.group, 0) < MAX_OF_A_KIND:
            counts[option.group] = counts.get(option.group, 0) + 1
            shown.append(option)
    return render(request, "components/palette_options.html", {"options": shown})

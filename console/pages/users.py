"""Users and roles: who there is, what each may do and where; give and take, disable, make."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from console.access import KIND_ACTS, OWN_JOBS_ONLY, Act, Role
from console.choices import JobKind, Mode, Via
from console.exceptions import ConsoleError, Invalid
from console.labels import selector_read
from console.models import RoleGrant, User
from console.pages.asking import key_read, sentence
from console.pages.once import is_first
from console.pages.shell import page, page_render, see_other
from console.pages.tokens import CLASSES
from console.requests import actor_of, rights_in
from console.selectors.engines import engine_list
from console.selectors.people import roles_table, user_get, users_list
from console.services.grants import grant_give, grant_take
from console.services.users import (
    password_make,
    user_create,
    user_reset_password,
    user_set_active,
)


@dataclass
class UserForm:
    """What was typed, and what was wrong with it."""

    username: str = ""
    full_name: str = ""
    role: str = str(Role.VIEWER)
    is_service: bool = False
    key: str = field(default_factory=lambda: str(uuid.uuid4()))
    error: str = ""


@dataclass(frozen=True)
class MadePassword:
    """A password that was made, shown once."""

    username: str
    text: str


def _matrix() -> list[dict[str, object]]:
    """The roles' acts as the page shows them; steering is what a kind's act gives."""
    steers = {KIND_ACTS[kind] for kind in JobKind}
    return [
        {
            "act": act,
            "class": CLASSES[act],
            "cells": [
                (role, has, has and act in steers and role in OWN_JOBS_ONLY)
                for role, has in zip(Role, answers, strict=True)
            ],
        }
        for act, answers in roles_table()
    ]


@page
@require_safe
def users(request: HttpRequest) -> HttpResponse:
    """Everybody, for admins; the table of roles and one's own, for all."""
    rights = rights_in(request)
    found = users_list(rights=rights) if rights.may(Act.USERS) else []
    mine = {str(grant.role) for grant in rights.grants}
    return page_render(
        request,
        "users.html",
        nav="users",
        title="Users and roles",
        context={
            "users": found,
            "own_grants": RoleGrant.objects.filter(user__pk=rights.user_id or 0),
            "admins": User.objects.filter(
                grants__role=Role.ADMIN, grants__selector="", is_active=True
            ).order_by("username"),
            "roles": list(Role),
            "mine": mine,
            "matrix": _matrix(),
            "num_people": sum(not user.is_service for user in found),
            "num_service": sum(user.is_service for user in found),
        },
    )


def _user_page(
    request: HttpRequest,
    username: str,
    *,
    status: int = 200,
    error: str = "",
    made: MadePassword | None = None,
) -> HttpResponse:
    rights = rights_in(request)
    found = user_get(username=username, rights=rights)
    views = engine_list(rights=rights)
    grants = [
        (row, [v.name for v in views if selector_read(row.selector).fits(v.labels)])
        for row in found.grants.all()
    ]
    return page_render(
        request,
        "user.html",
        nav="users",
        title=f"User {found.username}",
        status=status,
        context={
            "user_": found,
            "grants": grants,
            "num_engines": len(views),
            "roles": list(Role),
            "modes": list(Mode),
            "is_self": found.pk == rights.user_id,
            "error": error,
            "made": made,
            "posted": request.POST,
        },
    )


@page
@require_safe
def user(request: HttpRequest, username: str) -> HttpResponse:
    """One person: their roles, where they hold, within which limits."""
    return _user_page(request, username)


def _new_page(request: HttpRequest, form: UserForm, status: int = 200) -> HttpResponse:
    rights_in(request).require(Act.USERS)
    return page_render(
        request,
        "user_new.html",
        nav="users",
        title="New user",
        status=status,
        context={"form": form, "roles": list(Role)},
    )


@page
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """The form; posted, the person's page with the made password, this once."""
    if request.method != "POST":
        return _new_page(request, UserForm())
    data = request.POST
    form = UserForm(
        username=data.get("username", "").strip(),
        full_name=data.get("full_name", "").strip(),
        role=data.get("role", ""),
        is_service=data.get("is_service") == "on",
        key=key_read(data.get("key", "")),
    )
    rights_in(request).require(Act.USERS)
    if not is_first(request, form.key):
        form.error = "This form has made a user already."
        return _new_page(request, form, 409)
    text = "" if form.is_service else password_make()
    try:
        made = user_create(
            username=form.username,
            full_name=form.full_name,
            password=text,
            roles=[form.role],
            is_service=form.is_service,
            actor=actor_of(request, via=Via.UI),
            process="web",
        )
    except ConsoleError as error:
        form.key, form.error = str(uuid.uuid4()), sentence(error.message)
        return _new_page(request, form, error.status)
    shown = MadePassword(made.username, text) if text else None
    return _user_page(request, made.username, status=201, made=shown)


@page
@require_POST
def active(request: HttpRequest, username: str) -> HttpResponseBase:
    """Disable or enable."""
    wanted = request.POST.get("is_active", "")
    if wanted not in ("yes", "no"):
        raise Invalid("is_active must be yes or no")
    user_set_active(
        username=username,
        is_active=wanted == "yes",
        actor=actor_of(request, via=Via.UI),
        process="web",
    )
    return see_other(reverse("user", args=[username]))


@page
@require_POST
def password(request: HttpRequest, username: str) -> HttpResponse:
    """A new password, shown once; every session of the person ends."""
    text = password_make()
    actor = actor_of(request, via=Via.UI)
    user_reset_password(username=username, password=text, actor=actor, process="web")
    return _user_page(request, username, made=MadePassword(username, text))


def _limit_read(text: str) -> float | None:
    if not text.strip():
        return None
    try:
        return float(text)
    except ValueError as error:
        raise Invalid("the longest deadline is a number of seconds") from error


@page
@require_POST
def give(request: HttpRequest, username: str) -> HttpResponseBase:
    """A role on a group of engines; given again, its limits change."""
    data = request.POST
    modes = data.getlist("modes")
    try:
        grant_give(
            username=username,
            role=data.get("role", ""),
            selector=data.get("selector", ""),
            max_timeout_s=_limit_read(data.get("max_timeout_s", "")),
            modes=modes if modes and len(modes) < len(Mode) else None,
            may_force=data.get("may_force") == "on",
            actor=actor_of(request, via=Via.UI),
            process="web",
        )
    except Invalid as error:
        return _user_page(request, username, status=422, error=sentence(error.message))
    return see_other(reverse("user", args=[username]))


@page
@require_POST
def take(request: HttpRequest, username: str, grant_id: int) -> HttpResponseBase:
    """Take a role away; open pages of the person close within a second."""
    actor = actor_of(request, via=Via.UI)
    found = user_get(username=username, rights=actor.rights)
    if grant_id in {row.pk for row in found.grants.all()}:
        grant_take(grant_id=grant_id, actor=actor, process="web")
    return see_other(reverse("user", args=[username]))

"""What every page shares: log-in, the header's facts, and errors in the look.

`page` wraps a view: nobody logged in → the log-in form; a ConsoleError → its error page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec  # template contexts hold anything

import structlog
from django.contrib.auth.decorators import login_required
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.html import format_html
from django.utils.safestring import SafeString

from console.clock import db_now
from console.exceptions import ConsoleError, Unavailable
from console.models import User
from console.pages.parts_banner import parts_banner
from console.pages.weights_cells import mixed_banner
from console.requests import rights_in
from console.selectors.health import parts_read
from console.selectors.jobs import jobs_open_count

log = structlog.get_logger(__name__)

VERSION = "0.1.0"

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponseBase]

_WHAT_TO_DO = {
    400: "Go back and send it again; if a link brought you here, it is broken.",
    403: "Go back, reload the page and try again: its form may be older than your log-in.",
    404: "Look in the list it should be in; jobs and entries are never deleted.",
    405: "Use the pages' own buttons.",
    409: "Look at what holds it, then try again.",
    500: "Report this with the request id. What you asked for may or may not have been done: "
    "look at Jobs before you send it again.",
    503: "Wait a moment and reload. What is down is named at /healthz.",
}
_TO_DO_BY_CODE = {
    "forbidden": "Users and roles, under More, has what each role may do and who gives them.",
}
_TRUE_NOW = {
    500: "A fault of the console, not of an engine. It is in the console's log.",
    503: "Nothing was changed by this request.",
}


def nav_count(count: int) -> SafeString:
    """The number beside Jobs."""
    return format_html('{}<span class="vh"> open</span>', count)


def page_context(request: HttpRequest, *, nav: str, title: str) -> dict[str, Any]:
    """The header's facts; costs one count."""
    user = request.user
    assert isinstance(user, User), "the header is for people who are logged in"
    name, rights = user.get_username(), rights_in(request)
    return {
        "nav": nav,
        "title": title,
        "now": db_now(),
        "version": VERSION,
        "user_name": name,
        "initials": "".join(part[:1] for part in name.replace("-", ".").split(".")[:2]).upper(),
        "nav_jobs": nav_count(jobs_open_count(rights=rights)),
        "rights": rights,
        "role_names": ", ".join(dict.fromkeys(str(one.role) for one in rights.grants)),
        "topics": "",
        "parts": parts_banner(parts_read()),
        "mixed": mixed_banner(rights),
    }


def see_other(url: str) -> HttpResponse:
    """Go on with a GET: what was posted is done, and a reload does not post it again."""
    return HttpResponse(status=303, headers={"Location": url})


def page_render(
    request: HttpRequest,
    template: str,
    *,
    nav: str,
    title: str,
    context: Mapping[str, Any],
    status: int = 200,
) -> HttpResponse:
    """Render a page in the shell."""
    whole = {**page_context(request, nav=nav, title=title), **context}
    return render(request, template, whole, status=status)


def _header(request: HttpRequest, title: str, status: int) -> dict[str, Any]:
    """The header's facts where they can be had: not in trouble, not for a stranger."""
    bare = {"title": title, "bare": True, "version": VERSION}
    if status >= 500:
        return bare
    try:
        user = getattr(request, "user", None)
        return page_context(request, nav="", title=title) if _is_person(user) else bare
    except DatabaseError:
        return bare


def _is_person(user: object) -> bool:
    """True for a person who is logged in (`request.user` is lazy)."""
    return bool(getattr(user, "is_authenticated", False))


def error_render(
    request: HttpRequest,
    *,
    status: int,
    title: str,
    message: str,
    facts: Mapping[str, object] | None = None,
) -> HttpResponse:
    """An error page: what, what is true, what to do, request id; no header from 500 up."""
    code = str((facts or {}).get("code", ""))
    context = {
        **_header(request, title, status),
        "status": status,
        "message": message,
        "facts": dict(facts or {}),
        "true_now": _TRUE_NOW.get(status, "Nothing was changed by this request."),
        "to_do": _TO_DO_BY_CODE.get(code) or _WHAT_TO_DO.get(status, _WHAT_TO_DO[400]),
        "request_id": getattr(request, "request_id", ""),
        "word": "failed" if status == 500 else "refused" if status < 500 else "unreachable",
    }
    return render(request, "error.html", context, status=status)


def console_error_render(request: HttpRequest, error: ConsoleError) -> HttpResponse:
    """The page of a ConsoleError."""
    return error_render(
        request,
        status=error.status,
        title=error.title,
        message=error.message,
        facts={"code": error.code, **error.facts},
    )


def page(view: View[P]) -> View[P]:
    """A page of the console: for people who are logged in, errors in the look."""

    @wraps(view)
    def wrapped(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        try:
            return view(request, *args, **kwargs)
        except ConsoleError as error:
            return console_error_render(request, error)

    guarded = login_required(wrapped)

    @wraps(view)
    def outer(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        try:
            return guarded(request, *args, **kwargs)
        except DatabaseError as error:
            log.error("page without a database", path=request.path, error=repr(error))
            return console_error_render(
                request, Unavailable("The database did not answer, so this page cannot be shown.")
            )

    return outer

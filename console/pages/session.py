"""Log-in and log-out."""

from __future__ import annotations

from typing import Any  # template contexts hold anything

import structlog
from django.contrib.auth import logout
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.db import DatabaseError, transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from console import notify
from console.choices import Via
from console.exceptions import Unavailable
from console.models import User
from console.pages.shell import VERSION, console_error_render
from console.requests import actor_of, asker_of
from console.services.attempts import attempt_note

log = structlog.get_logger(__name__)


class LogIn(LoginView):
    """The log-in form."""

    template_name = "login.html"
    redirect_authenticated_user = True

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Without the header: nobody is logged in."""
        form = kwargs.get("form")  # a new one would try the password again
        is_refused = form is not None and bool(form.errors)
        return super().get_context_data(
            **kwargs,
            bare=True,
            title="Sign in",
            version=VERSION,
            error=is_refused,
        )

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """503 when nothing can be recorded: then nobody logs in."""
        try:
            return super().dispatch(request, *args, **kwargs)
        except DatabaseError as error:
            log.error("log-in without a database", error=repr(error))
            request.session.modified = False  # what was begun is not saved
            return console_error_render(
                request, Unavailable("The database did not answer, so nobody can log in now.")
            )

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Log in, on record or not at all."""
        user = form.get_user()
        with transaction.atomic():
            response = super().form_valid(form)
            self.request.user = user
            attempt_note(
                action="session.opened",
                result="succeeded",
                actor=actor_of(self.request, via=Via.UI),
                facts={"object": f"session of {user.get_username()}"},
            )
        return response

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """Record the try; a name that nobody has may be a password, so it is not kept."""
        name = User.normalize_username(str(form.data.get("username", "")))[:150]
        is_known = User.objects.filter(username=name).exists()
        attempt_note(
            action="session.refused",
            result="denied",
            actor=asker_of(self.request, via=Via.UI),
            facts={"object": f"session of {name}" if is_known else "session of nobody known"},
        )
        return super().form_invalid(form)


@require_POST
def log_out(request: HttpRequest) -> HttpResponse:
    """End the session, and close its sockets."""
    session_key = request.session.session_key
    if request.user.is_authenticated:
        try:
            attempt_note(
                action="session.closed",
                result="succeeded",
                actor=actor_of(request, via=Via.UI),
                facts={"object": f"session of {request.user.get_username()}"},
            )
        except DatabaseError as error:  # whoever wants to go may go
            log.error("a log-out could not be recorded", error=repr(error))
    logout(request)
    if session_key:
        notify.session_closed(session_key)
    return redirect("login")

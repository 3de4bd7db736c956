"""Log-in, log-out and a plain list of engines."""

from __future__ import annotations

from django.contrib.auth import logout
from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from console import notify
from console.selectors.engines import engine_list


class LogIn(LoginView):
    """The log-in form."""

    template_name = "login.html"
    redirect_authenticated_user = True


@require_POST
def log_out(request: HttpRequest) -> HttpResponse:
    """End the session, and close its sockets."""
    session_key = request.session.session_key
    logout(request)
    if session_key:
        notify.session_closed(session_key)
    return redirect("login")


@login_required
def fleet(request: HttpRequest) -> HttpResponse:
    """Every engine."""
    return render(request, "fleet.html", {"engines": engine_list()})

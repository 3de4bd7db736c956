"""Log-in and log-out."""

from __future__ import annotations

from typing import Any  # template contexts hold anything

from django.contrib.auth import logout
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from console import notify
from console.pages.shell import VERSION


class LogIn(LoginView):
    """The log-in form."""

    template_name = "login.html"
    redirect_authenticated_user = True

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Without the header: nobody is logged in."""
        return super().get_context_data(
            **kwargs,
            bare=True,
            title="Sign in",
            version=VERSION,
            error=bool(self.get_form().errors),
        )


@require_POST
def log_out(request: HttpRequest) -> HttpResponse:
    """End the session, and close its sockets."""
    session_key = request.session.session_key
    logout(request)
    if session_key:
        notify.session_closed(session_key)
    return redirect("login")

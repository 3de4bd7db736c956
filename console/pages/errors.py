"""Django's own errors in the look: 400, 403, 404, 500. They read no database."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from console.pages.shell import error_render


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """400."""
    return error_render(
        request, status=400, title="Unreadable request", message="The request cannot be read."
    )


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """403."""
    return error_render(
        request, status=403, title="Not allowed", message="You may not do this, or not from there."
    )


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """403 of a form that is not ours, or is older than the log-in."""
    return error_render(
        request,
        status=403,
        title="This form is not valid any more",
        message=reason or "The form's proof is missing.",
    )


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """404."""
    return error_render(
        request, status=404, title="Not found", message=f"There is no page at {request.path}."
    )


def server_error(request: HttpRequest) -> HttpResponse:
    """500."""
    return error_render(
        request, status=500, title="The console failed", message="A fault in the console itself."
    )

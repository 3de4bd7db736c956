"""Log-in throttling: what django-axes is told, and what somebody sees who is locked out."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any  # credentials are what a form sends

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from console.pages.shell import error_render


def name_fingerprint(request: HttpRequest, credentials: dict[str, Any] | None = None) -> str:
    """What a typed name is counted under: people type passwords there, so no name is kept."""
    typed = (credentials or {}).get("username") or request.POST.get("username", "")
    key = hashlib.sha256(b"log-in names" + settings.SECRET_KEY.encode()).digest()
    return hmac.new(key, str(typed).casefold().encode(errors="replace"), "sha256").hexdigest()


def client_address(request: HttpRequest) -> str:
    """The peer's: forwarded headers are not believed."""
    return str(request.META.get("REMOTE_ADDR", ""))[:45]


def locked_out(
    request: HttpRequest, original: HttpResponse, credentials: dict[str, Any]
) -> HttpResponse:
    """429, in the look."""
    response = error_render(
        request,
        status=429,
        title="Too many wrong passwords",
        message="This name had ten wrong passwords from your address. Try again in a quarter of an "
        "hour; a right password does not help before that",
    )
    response["Retry-After"] = str(int(settings.AXES_COOLOFF_TIME.total_seconds()))
    return response

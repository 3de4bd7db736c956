"""How often one caller may ask: by token, or by person."""

from __future__ import annotations

from django.http import HttpRequest
from ninja.throttling import SimpleRateThrottle

from console.models import User
from console.requests import token_of


class CallerThrottle(SimpleRateThrottle):
    """So many requests a second of one caller, counted in each web process."""

    scope = "caller"

    def get_cache_key(self, request: HttpRequest) -> str | None:
        """One token's, or one person's; whoever is neither was refused before."""
        token = token_of(request)
        if token is not None:
            return f"throttle-token-{token.prefix}"
        return f"throttle-user-{request.user.pk}" if isinstance(request.user, User) else None

"""From an HTTP request to the Actor that services take."""

from __future__ import annotations

from django.http import HttpRequest

from console.actors import Actor
from console.choices import Via
from console.models import ApiToken, User


def asker_of(request: HttpRequest, *, via: Via) -> Actor:
    """Who asks, also when nobody knows: then `anonymous`, from an address."""
    token = getattr(request, "auth", None)
    if isinstance(token, ApiToken):
        return actor_of(request, via=via, token=token)
    if request.user.is_authenticated:
        return actor_of(request, via=via)
    return Actor(
        user_id=None,
        name="anonymous",
        via=via,
        source_ip=str(request.META.get("REMOTE_ADDR", ""))[:45],
        request_id=str(getattr(request, "request_id", "")),
    )


def actor_of(request: HttpRequest, *, via: Via, token: ApiToken | None = None) -> Actor:
    """Who asks. The address is the peer's: forwarded headers are not believed."""
    user = token.user if token is not None else request.user
    assert isinstance(user, User), "only for an authenticated request"
    return Actor(
        user_id=user.pk,
        name=user.get_username(),
        via=via,
        token_prefix=f"qsc_{token.prefix}" if token is not None else "",
        source_ip=str(request.META.get("REMOTE_ADDR", ""))[:45],
        request_id=str(getattr(request, "request_id", "")),
    )

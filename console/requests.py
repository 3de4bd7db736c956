"""From an HTTP request to the Actor that services take, and to what they may do."""

from __future__ import annotations

from django.http import HttpRequest

from console.access import NOTHING, Rights
from console.actors import Actor
from console.choices import Via
from console.models import ApiToken, User
from console.selectors.access import rights_of

_RIGHTS = "_quiesce_rights"


def token_of(request: HttpRequest) -> ApiToken | None:
    """The token that the request was let in by, if it was one."""
    auth = getattr(request, "auth", None)
    return auth if isinstance(auth, ApiToken) else None


def rights_in(request: HttpRequest) -> Rights:
    """What whoever asks may do, as of now; read once a request. Nothing for a stranger."""
    known = getattr(request, _RIGHTS, None)
    if isinstance(known, Rights):
        return known
    token = token_of(request)
    user = token.user if token is not None else request.user
    rights = rights_of(user, token) if isinstance(user, User) else NOTHING
    setattr(request, _RIGHTS, rights)
    return rights


def asker_of(request: HttpRequest, *, via: Via) -> Actor:
    """Who asks, also when nobody knows: then `anonymous`, from an address."""
    if token_of(request) is not None or request.user.is_authenticated:
        return actor_of(request, via=via)
    return Actor(
        user_id=None,
        name="anonymous",
        via=via,
        source_ip=str(request.META.get("REMOTE_ADDR", ""))[:45],
        request_id=str(getattr(request, "request_id", "")),
    )


def actor_of(request: HttpRequest, *, via: Via) -> Actor:
    """Who asks. The address is the peer's: forwarded headers are not believed."""
    token = token_of(request)
    user = token.user if token is not None else request.user
    assert isinstance(user, User), "only for an authenticated request"
    return Actor(
        user_id=user.pk,
        name=user.get_username(),
        via=via,
        token_prefix=f"qsc_{token.prefix}" if token is not None else "",
        source_ip=str(request.META.get("REMOTE_ADDR", ""))[:45],
        request_id=str(getattr(request, "request_id", "")),
        rights=rights_in(request),
    )

"""Who calls: a bearer token, or the session cookie with a CSRF token.

Rule: if an Authorization header is there, it alone decides, and no CSRF token is asked for. Else
the cookie decides, and then a CSRF token is needed on every method that changes something.
"""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest
from ninja.errors import AuthenticationError
from ninja.security import APIKeyCookie, HttpBearer

from console.access import Rights
from console.actors import Actor
from console.choices import Via
from console.clock import db_now
from console.models import ApiToken, User
from console.requests import actor_of, token_of
from console.selectors.access import rights_of, token_is_live
from console.services.tokens import token_verify


class TokenAuth(HttpBearer):
    """`Authorization: Bearer qsc_…`."""

    def authenticate(self, request: HttpRequest, token: str) -> ApiToken | None:
        """The live token, or None."""
        return token_verify(text=token, source_ip=str(request.META.get("REMOTE_ADDR", "")))


class SessionAuth(APIKeyCookie):
    """The log-in of a person in a browser; checks CSRF before anything else."""

    param_name = settings.SESSION_COOKIE_NAME

    def __call__(self, request: HttpRequest) -> User | None:
        """The person, or None without a cookie. Raises HttpError(403) without a CSRF token."""
        if "Authorization" in request.headers or self.param_name not in request.COOKIES:
            return None
        user = super().__call__(request)
        assert user is None or isinstance(user, User)
        return user

    def authenticate(self, request: HttpRequest, key: str | None) -> User | None:
        """The active person behind the session."""
        user = request.user
        return user if isinstance(user, User) and user.is_active else None


# Tried in this order on every operation; tests enumerate the operations and allow no other kind.
AUTH = [TokenAuth(), SessionAuth()]


def actor(request: HttpRequest) -> Actor:
    """Who calls, for services."""
    return actor_of(request, via=Via.API)


def rights_now(request: HttpRequest) -> Rights:
    """What whoever was let in may do by now, for a request that has waited.

    Raises AuthenticationError once the token was revoked or has ended, the person was disabled, or
    the session has ended.
    """
    token, user = token_of(request), None
    if token is not None:
        token = ApiToken.objects.select_related("user").filter(pk=token.pk).first()
        user = token.user if token is not None and token_is_live(token, db_now()) else None
    elif request.session.exists(str(request.session.session_key)):
        user = get_user(request)
    if not isinstance(user, User) or not user.is_active:
        raise AuthenticationError
    return rights_of(user, token)

"""Read a person's tokens."""

from __future__ import annotations

from console.models import ApiToken, User


def token_list(*, user: User) -> list[ApiToken]:
    """The person's tokens, newest first."""
    return list(ApiToken.objects.filter(user=user))

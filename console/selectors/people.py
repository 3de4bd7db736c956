"""Read people, their roles and tokens, and what there is to see of oneself; as JSON too."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any  # JSON objects

from django.db.models import Count, Q, QuerySet

from console.access import ROLE_ACTS, Act, Rights, Role
from console.clock import db_now
from console.exceptions import NotFound
from console.models import ApiToken, RoleGrant, User
from console.selectors.payloads import when

EXPIRES_SOON = timedelta(days=7)


def users_list(*, rights: Rights) -> list[User]:
    """Everybody, with grants; `num_tokens` counts the live ones. Raises Forbidden."""
    rights.require(Act.USERS)
    return list(_users().order_by("username"))


def _users() -> QuerySet[User]:
    now = db_now()
    live = Q(tokens__revoked_at=None) & (Q(tokens__expires_at=None) | Q(tokens__expires_at__gt=now))
    return User.objects.prefetch_related("grants").annotate(
        num_tokens=Count("tokens", filter=live, distinct=True)
    )


def user_get(*, username: str, rights: Rights) -> User:
    """One person. Raises Forbidden, NotFound."""
    rights.require(Act.USERS)
    user = None if "\x00" in username else _users().filter(username=username).first()
    if user is None:
        raise NotFound(f"no user is named {username!r}")
    return user


def tokens_list(*, rights: Rights) -> list[ApiToken]:
    """One's own tokens, or with the act everybody's; newest first. Raises Forbidden."""
    rights.require(Act.TOKENS)
    rows = ApiToken.objects.select_related("user")
    if not rights.may(Act.USERS):
        rows = rows.filter(user__pk=rights.user_id or 0)
    return list(rows)


def token_word(token: ApiToken, now: datetime) -> str:
    """active, expires soon, expired or revoked."""
    if token.revoked_at is not None:
        return "revoked"
    if token.expires_at is None or token.expires_at > now + EXPIRES_SOON:
        return "active"
    return "expires soon" if token.expires_at > now else "expired"


def token_payload(token: ApiToken, now: datetime) -> dict[str, Any]:
    """One token, never its text."""
    return {
        "prefix": f"qsc_{token.prefix}",
        "name": token.name,
        "owner": token.user.get_username(),
        "state": token_word(token, now),
        "scopes": token.scopes,
        "engines": token.reach,
        "created_at": when(token.created_at),
        "expires_at": when(token.expires_at),
        "last_used_at": when(token.last_used_at),
        "last_used_from": token.last_used_ip or None,
        "revoked_at": when(token.revoked_at),
        "revoked_by": token.revoked_by_name or None,
        "revoked_reason": token.revoked_reason or None,
    }


def grant_payload(row: RoleGrant) -> dict[str, Any]:
    """One role of somebody."""
    return {
        "id": row.pk,
        "role": row.role,
        "engines": row.selector,
        "max_timeout_s": row.max_timeout_s,
        "modes": row.modes,
        "may_force": row.may_force,
        "created_at": when(row.created_at),
        "created_by": row.created_by_name,
    }


def user_payload(user: User) -> dict[str, Any]:
    """One person."""
    return {
        "username": user.get_username(),
        "full_name": user.first_name,
        "is_active": user.is_active,
        "is_service": user.is_service,
        "last_login": when(user.last_login),
        "grants": [grant_payload(row) for row in user.grants.all()],
    }


def self_payload(user: User, token: ApiToken | None, rights: Rights) -> dict[str, Any]:
    """Who asks, and what they may do on some engine."""
    return {
        "username": user.get_username(),
        "token": f"qsc_{token.prefix}" if token is not None else None,
        "acts": [str(act) for act in Act if rights.may(act)],
        "grants": [grant_payload(row) for row in RoleGrant.objects.filter(user=user)],
    }


def roles_table() -> list[tuple[Act, list[bool]]]:
    """What each role may do: (act, one answer a role, in their order)."""
    return [(act, [act in ROLE_ACTS[role] for role in Role]) for act in Act]

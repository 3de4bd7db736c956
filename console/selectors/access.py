"""Read what somebody may do, and which engines they may see."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime

from django.db.models import QuerySet

from console.access import EVERYTHING, NOTHING, Act, Grant, Rights, Role
from console.choices import Via
from console.labels import labels_of, selector_read
from console.models import ApiToken, Engine, Job, RoleGrant, User
from console.prepared import Prepared

_GRANTS = Prepared(lambda user: RoleGrant.objects.filter(user=user), int)
_GRANTS_OF_ACTIVE = Prepared(
    lambda user: RoleGrant.objects.filter(user=user, user__is_active=True), int
)
_LIVE_TOKEN = Prepared(
    lambda prefix, user: ApiToken.objects.filter(prefix=prefix, user=user, revoked_at=None),
    *(str, int),
)


def grant_of(row: RoleGrant) -> Grant:
    """A row as what is decided by."""
    return Grant(
        role=Role(row.role),
        selector=selector_read(row.selector),
        max_timeout_s=row.max_timeout_s,
        modes=None if row.modes is None else frozenset(row.modes),
        may_force=row.may_force,
    )


def rights_of(user: User, token: ApiToken | None = None) -> Rights:
    """What this person may do now, when they came with `token` or without one."""
    if not user.is_active:
        return NOTHING
    scopes = None
    if token is not None and token.scopes is not None:
        scopes = frozenset(Act(name) for name in token.scopes if name in Act.values)
    return Rights(
        user_id=user.pk,
        grants=tuple(grant_of(row) for row in _GRANTS.all(user.pk)),
        scopes=scopes,
        reach=selector_read(token.reach if token is not None else ""),
        ends_at=token.expires_at if token is not None else None,
    )


def rights_of_people(user_ids: Collection[int]) -> dict[int, Rights]:
    """What each of these people may do now, when they came without a token, in one query.

    One who is gone or disabled, or has no role, may do NOTHING.
    """
    grants: dict[int, list[Grant]] = {user_id: [] for user_id in user_ids}
    for row in _granted_to(user_ids):
        grants[row.user_id].append(grant_of(row))
    return {
        pk: Rights(user_id=pk, grants=tuple(of)) if of else NOTHING for pk, of in grants.items()
    }


def _granted_to(user_ids: Collection[int]) -> Iterable[RoleGrant]:
    if len(user_ids) == 1:  # mostly: who watches one job
        return _GRANTS_OF_ACTIVE.all(*user_ids)
    return RoleGrant.objects.filter(user__in=user_ids, user__is_active=True)


def token_is_live(token: ApiToken, now: datetime) -> bool:
    """It was not revoked, and has not ended; whether its owner may come in is `rights_of`'s."""
    has_ended = token.expires_at is not None and token.expires_at <= now
    return token.revoked_at is None and not has_ended


def rights_behind(job: Job) -> Rights:
    """What whoever asked for a job may do now, by the way that they came."""
    if job.via == Via.SYSTEM:
        return EVERYTHING
    user = job.requested_by
    if user is None:
        return NOTHING
    if not job.token_prefix:
        return rights_of(user)
    token = _token_behind(job)
    return rights_of(user, token) if token is not None else NOTHING


def _token_behind(job: Job) -> ApiToken | None:
    """The token that a job was asked for with, unless it was revoked; one that ended is there."""
    prefix = job.token_prefix.removeprefix("qsc_")
    return _LIVE_TOKEN.first(prefix, job.requested_by_id)


def why_shut_out(job: Job) -> str:
    """Why whoever asked for a job may do nothing at all any more, whatever their roles; or ""."""
    user = job.requested_by
    if job.via == Via.SYSTEM:
        return ""
    if user is None:
        return "this account is not there any more"
    if not user.is_active:
        return "this account was disabled"
    if job.token_prefix and _token_behind(job) is None:
        return f"the token {job.token_prefix} was revoked"
    return ""


def labels_of_engine(engine: Engine) -> dict[str, str]:
    """What selectors are matched with."""
    return labels_of(engine.name, engine.labels)


def engines_with(rights: Rights, act: Act = Act.READ, *, removed: bool = False) -> QuerySet[Engine]:
    """The engines on which `rights` allow `act`, by name; those that were removed if so asked."""
    rows = Engine.objects.order_by("name")
    if not removed:
        rows = rows.filter(removed_at=None)
    if rights.may_everywhere(act):
        return rows
    if not rights.may(act):
        return rows.none()
    labels = Engine.objects.values_list("pk", "name", "labels")
    return rows.filter(
        pk__in=[pk for pk, name, given in labels if rights.may(act, labels_of(name, given))]
    )


def sees_engine(rights: Rights, engine: Engine) -> bool:
    """True for an engine that is there for whoever has these rights."""
    return rights.may(Act.READ, labels_of_engine(engine))

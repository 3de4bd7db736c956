"""Give roles and take them; the next act of the person, and of their open pages, is by the new."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from django.db import transaction

from console import notify
from console.access import Act, Role
from console.actors import Actor
from console.choices import AuditStage, Mode
from console.clock import db_now
from console.exceptions import Conflict, Invalid, NotFound
from console.labels import selector_read
from console.models import RoleGrant, User
from console.services.audit import Fact, audit_append
from engine.protocol import MAX_TIMEOUT_S


def _limits_check(
    max_timeout_s: float | None, modes: Sequence[str] | None
) -> tuple[float | None, list[str] | None]:
    if max_timeout_s is not None and not (
        math.isfinite(max_timeout_s) and 0 < max_timeout_s <= MAX_TIMEOUT_S
    ):
        raise Invalid(f"the longest deadline is from 0 to {MAX_TIMEOUT_S:g} seconds, not 0")
    if modes is None:
        return max_timeout_s, None
    unknown = [mode for mode in modes if mode not in Mode.values]
    if unknown or not modes:
        raise Invalid(f"modes are one or more of {', '.join(Mode.values)}")
    return max_timeout_s, [mode for mode in Mode.values if mode in modes]


def _note(
    action: str, row: RoleGrant, actor: Actor, now: datetime, process: str, **facts: Fact
) -> None:
    audit_append(
        action=action,
        stage=AuditStage.NOTE,
        actor=actor,
        now=now,
        process=process,
        facts={
            "object": f"role {row.role} of {row.user.username}",
            "user": row.user_id,
            "role": row.role,
            "selector": row.selector,
            "max_timeout_s": row.max_timeout_s,
            "modes": row.modes,
            "may_force": row.may_force,
            **facts,
        },
    )
    transaction.on_commit(partial(notify.user_changed, row.user_id), robust=True)


@transaction.atomic
def grant_give(
    *,
    username: str,
    role: str,
    actor: Actor,
    selector: str = "",
    max_timeout_s: float | None = None,
    modes: Sequence[str] | None = None,
    may_force: bool = True,
    process: str = "cli",
    now: datetime | None = None,
) -> RoleGrant:
    """Give a role on the engines that `selector` selects, or change its limits there.

    Raises Forbidden, NotFound (user), Invalid.
    """
    actor.rights.require(Act.USERS)
    now = now or db_now()
    if role not in Role.values:
        raise Invalid(f"a role is one of {', '.join(Role.values)}")
    selector = selector_read(selector).text
    max_timeout_s, allowed = _limits_check(max_timeout_s, modes)
    user = User.objects.select_for_update(no_key=True).filter(username=username).first()
    if user is None:
        raise NotFound(f"no user is named {username!r}")
    wanted = {"max_timeout_s": max_timeout_s, "modes": allowed, "may_force": may_force}
    known = RoleGrant.objects.filter(user=user, role=role, selector=selector).first()
    if known is not None and all(getattr(known, name) == wanted[name] for name in wanted):
        return known
    row, _ = RoleGrant.objects.update_or_create(
        user=user,
        role=role,
        selector=selector,
        defaults=wanted,
        create_defaults={**wanted, "created_at": now, "created_by_name": actor.name},
    )
    _note("role.changed" if known else "role.given", row, actor, now, process)
    return row


@transaction.atomic
def grant_take(
    *, grant_id: int, actor: Actor, process: str = "cli", now: datetime | None = None
) -> None:
    """Take a role away. Raises Forbidden, NotFound, Conflict for the last admin of the fleet."""
    actor.rights.require(Act.USERS)
    row = RoleGrant.objects.select_related("user").filter(pk=grant_id).first()
    if row is None:
        raise NotFound(f"there is no grant {grant_id}")
    last_admin_check(without=row.user, grant=row)
    _note("role.taken", row, actor, now or db_now(), process)
    row.delete()


def last_admin_check(*, without: User, grant: RoleGrant | None = None) -> None:
    """Raise Conflict when nobody would be left who can give roles.

    Locks those who can, so that two admins cannot take each other's role at once.
    """
    rows = RoleGrant.objects.select_for_update(no_key=True).filter(
        role=Role.ADMIN, selector="", user__is_active=True
    )
    left = [row for row in rows if row.user_id != without.pk]
    if left or (grant is not None and (grant.role != Role.ADMIN or grant.selector)):
        return
    if any(row.user_id == without.pk for row in rows):
        raise Conflict(f"{without.username} is the last admin; make another one first")

"""Make people and service accounts, disable them, reset their passwords."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import datetime
from functools import partial

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction

from console import notify
from console.access import Act
from console.actors import Actor
from console.choices import AuditStage
from console.clock import db_now
from console.exceptions import AlreadyExists, Conflict, Invalid, NotFound
from console.models import User
from console.services.audit import Fact, audit_append
from console.services.grants import grant_give, last_admin_check
from console.services.reasons import full_name_read, username_read


def password_make() -> str:
    """A password that nobody need remember: 144 random bits."""
    return secrets.token_urlsafe(18)


def _checked(user: User, password: str) -> None:
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise Invalid(" ".join(error.messages)) from error


def _audit(
    action: str, user: User, actor: Actor, now: datetime, process: str, **facts: Fact
) -> None:
    audit_append(
        action=action,
        stage=AuditStage.NOTE,
        actor=actor,
        now=now,
        process=process,
        facts={"object": f"user {user.username}", "user": user.pk, **facts},
    )


def _locked(username: str) -> User:
    user = User.objects.select_for_update(no_key=True).filter(username=username).first()
    if user is None:
        raise NotFound(f"no user is named {username!r}")
    return user


def _free_check(username: str) -> None:
    """Raise AlreadyExists for a name that differs from another in its case at most.

    Compared here: databases do not agree on the case of letters beyond ASCII.
    """
    wanted = username.casefold()
    for known in User.objects.values_list("username", flat=True):
        if known.casefold() == wanted:
            raise AlreadyExists(f"user {known!r} exists already")


@transaction.atomic
def user_create(
    *,
    username: str,
    actor: Actor,
    password: str = "",
    roles: Iterable[str] = (),
    is_service: bool = False,
    full_name: str = "",
    process: str = "cli",
    now: datetime | None = None,
) -> User:
    """Make a person who can log in, or a service account, which has no password; with these roles
    on every engine. The name is kept in NFKC, so the caller goes on with that of the answer.
    Raises Forbidden, AlreadyExists, Invalid (weak password, bad name)."""
    actor.rights.require(Act.USERS)
    now = now or db_now()
    username = username_read(username)
    _free_check(username)
    name = full_name_read(full_name)
    user = User(username=username, is_service=is_service, first_name=name)
    if is_service:
        user.set_unusable_password()
    else:
        _checked(user, password)
        user.set_password(password)
    try:
        user.full_clean()
    except ValidationError as error:
        raise Invalid(" ".join(error.messages)) from error
    user.save()
    _audit("user.created", user, actor, now, process, is_service=is_service)
    for role in roles:
        grant_give(username=username, role=role, actor=actor, process=process, now=now)
    return user


@transaction.atomic
def user_reset_password(
    *,
    username: str,
    password: str,
    actor: Actor,
    process: str = "cli",
    now: datetime | None = None,
) -> User:
    """Set a new password; it ends every session of the person.

    Raises Forbidden, NotFound, Invalid, Conflict for a service account.
    """
    actor.rights.require(Act.USERS)
    user = _locked(username)
    if user.is_service:
        raise Conflict(f"{username} is a service account: it has no password")
    _checked(user, password)
    user.set_password(password)
    user.save(update_fields=["password"])
    _audit("user.password_reset", user, actor, now or db_now(), process)
    transaction.on_commit(partial(notify.user_closed, user.pk), robust=True)
    return user


@transaction.atomic
def user_set_active(
    *,
    username: str,
    is_active: bool,
    actor: Actor,
    process: str = "cli",
    now: datetime | None = None,
) -> User:
    """Disable or enable a person: their sessions, tokens and pages end with it, at once.

    Raises Forbidden, NotFound, Conflict for the last admin.
    """
    actor.rights.require(Act.USERS)
    user = _locked(username)
    if user.is_active == is_active:
        return user
    if not is_active:
        last_admin_check(without=user)
    user.is_active = is_active
    user.save(update_fields=["is_active"])
    action = "user.enabled" if is_active else "user.disabled"
    _audit(action, user, actor, now or db_now(), process)
    transaction.on_commit(partial(notify.user_closed, user.pk), robust=True)
    return user

"""Make people and reset their passwords."""

from __future__ import annotations

import secrets
from datetime import datetime

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction

from console import notify
from console.actors import Actor
from console.choices import AuditStage
from console.clock import db_now
from console.exceptions import AlreadyExists, Invalid, NotFound
from console.models import User
from console.services.audit import audit_append


def password_make() -> str:
    """A password that nobody need remember: 144 random bits."""
    return secrets.token_urlsafe(18)


def _checked(user: User, password: str) -> None:
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise Invalid(" ".join(error.messages)) from error


def _audit(action: str, user: User, actor: Actor, now: datetime, process: str) -> None:
    audit_append(
        action=action,
        stage=AuditStage.NOTE,
        actor=actor,
        now=now,
        process=process,
        facts={"object": f"user {user.username}", "user": user.pk},
    )


@transaction.atomic
def user_create(
    *,
    username: str,
    password: str,
    actor: Actor,
    is_admin: bool = False,
    process: str = "cli",
    now: datetime | None = None,
) -> User:
    """Make a person who can log in. Raises AlreadyExists, Invalid (weak password, bad name)."""
    if User.objects.filter(username=username).exists():
        raise AlreadyExists(f"user {username!r} exists already")
    user = User(username=username, is_staff=is_admin, is_superuser=is_admin)
    _checked(user, password)
    user.set_password(password)
    try:
        user.full_clean()
    except ValidationError as error:
        raise Invalid(" ".join(error.messages)) from error
    user.save()
    _audit("user.created", user, actor, now or db_now(), process)
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
    """Set a new password; it ends every session of the person. Raises NotFound, Invalid."""
    user = User.objects.select_for_update().filter(username=username).first()
    if user is None:
        raise NotFound(f"no user is named {username!r}")
    _checked(user, password)
    user.set_password(password)
    user.save(update_fields=["password"])
    _audit("user.password_reset", user, actor, now or db_now(), process)
    user_id = user.pk
    transaction.on_commit(lambda: notify.user_closed(user_id), robust=True)
    return user

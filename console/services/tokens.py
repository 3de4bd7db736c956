"""Bearer tokens: make, verify, revoke. The secret is returned once and never stored."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from console.access import Act, Rights
from console.actors import Actor
from console.choices import AuditStage, Via
from console.clock import db_now
from console.exceptions import Conflict, Forbidden, Invalid, NotFound
from console.labels import selector_read
from console.models import ApiToken, User
from console.prepared import Prepared
from console.selectors.access import token_is_live
from console.services.audit import audit_append
from console.services.reasons import reason_read

ALPHABET = string.digits + string.ascii_letters
PREFIX_CHARS = 8
SECRET_CHARS = 32  # 190 random bits: no slow hash is needed
# Published, so that secret scanners can find a leaked one.
TOKEN_PATTERN = re.compile(r"^qsc_([0-9A-Za-z]{8})_([0-9A-Za-z]{32,64})$")
USED_COARSENESS = timedelta(minutes=1)
MAX_LIFE = timedelta(days=90)
MAX_LIVE = 100  # tokens of one owner that have not ended
_NO_DIGEST = hashlib.sha256(b"no such token").hexdigest()

_TOKEN = Prepared(lambda prefix: ApiToken.objects.select_related("user").filter(prefix=prefix), str)


@dataclass(frozen=True)
class MadeToken:
    """A new token and its secret text, shown once."""

    token: ApiToken
    text: str


def _random(count: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(count))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _whose_require(owner: User, rights: Rights) -> None:
    """One's own tokens are one's own affair; those of others need the act. Raises Forbidden."""
    rights.require(Act.TOKENS)
    if owner.pk != rights.user_id:
        rights.require(Act.USERS)


def _scopes_check(scopes: Sequence[str] | None, rights: Rights) -> list[str] | None:
    """In the order of the acts. Raises Invalid, Forbidden for a token that would beget a wider."""
    if scopes is None:
        if rights.scopes is not None:
            raise Forbidden("a token with scopes makes none without", facts={"act": Act.TOKENS})
        return None
    if any(name not in Act.values for name in scopes):
        raise Invalid(f"a scope is one of {', '.join(Act.values)}")
    if not scopes:
        raise Invalid("a token needs a scope")
    if rights.scopes is not None and (more := set(scopes) - rights.scopes):
        raise Forbidden(f"this token has not the scope {min(more)} itself")
    return [act for act in Act.values if act in scopes]


def _end_check(expires_at: datetime | None, actor: Actor, now: datetime) -> None:
    """A token made with a token ends with it at the latest: who steals one gains no time by it.

    Raises Invalid, naming the limit.
    """
    is_local = actor.via in (Via.SYSTEM, Via.CLI)
    if not is_local and (expires_at is None or expires_at > now + MAX_LIFE):
        raise Invalid(f"a token lives {MAX_LIFE.days} days at most")
    if expires_at is not None and expires_at <= now:
        raise Invalid("a token must end in the future")
    last_at = actor.rights.ends_at
    if last_at is not None and (expires_at is None or expires_at > last_at):
        raise Invalid(
            f"a token made with this token ends with it, at {last_at.isoformat()}, at the latest"
        )


@transaction.atomic
def token_create(
    *,
    username: str,
    name: str,
    actor: Actor,
    scopes: Sequence[str] | None = None,
    reach: str = "",
    expires_at: datetime | None = None,
    process: str = "cli",
    now: datetime | None = None,
) -> MadeToken:
    """Make a token for a person: what its scopes and its owner's roles both allow, on the engines
    that the selector `reach` selects. Only from the console's machine can it be without an end.

    Raises NotFound (user), Forbidden, Conflict (disabled, too many), Invalid.
    """
    owner = User.objects.select_for_update(no_key=True).filter(username=username).first()
    if owner is None or (owner.pk != actor.rights.user_id and not actor.rights.may(Act.USERS)):
        raise NotFound(f"no user is named {username!r}")
    _whose_require(owner, actor.rights)
    if not owner.is_active:
        raise Conflict(f"{username} is disabled")
    name = name.strip()
    if not 1 <= len(name) <= 100:
        raise Invalid("a token needs a name of 1 to 100 characters")
    now = now or db_now()
    kept = _scopes_check(scopes, actor.rights)
    selected = selector_read(reach)
    if not actor.rights.reach.is_all and selected.text != actor.rights.reach.text:
        raise Forbidden("this token makes tokens that reach what it reaches itself")
    _end_check(expires_at, actor, now)
    live = Q(expires_at=None) | Q(expires_at__gt=now)
    if ApiToken.objects.filter(live, user=owner, revoked_at=None).count() >= MAX_LIVE:
        raise Conflict(f"{username} has {MAX_LIVE} tokens that have not ended; revoke some")
    prefix = _random(PREFIX_CHARS)
    text = f"qsc_{prefix}_{_random(SECRET_CHARS)}"
    token = ApiToken.objects.create(
        user=owner,
        name=name,
        prefix=prefix,
        digest=_digest(text),
        scopes=kept,
        reach=selected.text,
        created_at=now,
        expires_at=expires_at,
    )
    audit_append(
        action="token.created",
        stage=AuditStage.NOTE,
        actor=actor,
        now=now,
        process=process,
        facts={
            "object": f"token {name} of {owner.username}",
            "prefix": prefix,
            "scopes": kept,
            "reach": selected.text,
            "expires_at": expires_at,
        },
    )
    return MadeToken(token=token, text=text)


def token_verify(*, text: str, source_ip: str = "", now: datetime | None = None) -> ApiToken | None:
    """The live token of an active person that `text` is, or None; notes its use to the minute."""
    match = TOKEN_PATTERN.match(text)
    token = _TOKEN.first(match.group(1)) if match else None
    # Compare always, so that time does not tell whether a prefix exists.
    same = hmac.compare_digest(token.digest if token else _NO_DIGEST, _digest(text))
    if token is None or not same or not token.user.is_active:
        return None
    now = now or db_now()
    if not token_is_live(token, now):
        return None
    if token.last_used_at is None or now - token.last_used_at >= USED_COARSENESS:
        ApiToken.objects.filter(
            Q(last_used_at=None) | Q(last_used_at__lte=now - USED_COARSENESS), pk=token.pk
        ).update(last_used_at=now, last_used_ip=source_ip[:45])
    return token


@transaction.atomic
def token_revoke(
    *,
    prefix: str,
    actor: Actor,
    reason: str = "",
    process: str = "cli",
    now: datetime | None = None,
) -> ApiToken:
    """End a token at once. Raises NotFound, also for those of others that are not one's affair,
    Forbidden, Invalid (the reason). Revoking twice is once."""
    now = now or db_now()
    reason = reason_read(reason)
    rows = ApiToken.objects.select_related("user").select_for_update(no_key=True)
    token = rows.filter(prefix=prefix).first()
    rights = actor.rights
    if token is None or (token.user_id != rights.user_id and not rights.may(Act.USERS)):
        raise NotFound(f"no token begins with qsc_{prefix}")
    _whose_require(token.user, rights)
    if token.revoked_at is not None:
        return token
    token.revoked_at, token.revoked_by_name, token.revoked_reason = now, actor.name, reason
    token.save(update_fields=["revoked_at", "revoked_by_name", "revoked_reason"])
    audit_append(
        action="token.revoked",
        stage=AuditStage.NOTE,
        actor=actor,
        now=now,
        process=process,
        facts={
            "object": f"token {token.name} of {token.user.username}",
            "prefix": prefix,
            "reason": reason,
        },
    )
    return token

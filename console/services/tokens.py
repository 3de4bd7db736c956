"""Bearer tokens: make, verify, revoke. The secret is returned once and never stored."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from console.actors import Actor
from console.choices import AuditStage
from console.clock import db_now
from console.exceptions import Invalid, NotFound
from console.models import ApiToken, User
from console.services.audit import audit_append

ALPHABET = string.digits + string.ascii_letters
PREFIX_CHARS = 8
SECRET_CHARS = 32  # 190 random bits: no slow hash is needed
# Published, so that secret scanners can find a leaked one.
TOKEN_PATTERN = re.compile(r"^qsc_([0-9A-Za-z]{8})_([0-9A-Za-z]{32,64})$")
USED_COARSENESS = timedelta(minutes=1)
_NO_DIGEST = hashlib.sha256(b"no such token").hexdigest()


@dataclass(frozen=True)
class MadeToken:
    """A new token and its secret text, shown once."""

    token: ApiToken
    text: str


def _random(count: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(count))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@transaction.atomic
def token_create(
    *,
    user: User,
    name: str,
    actor: Actor,
    expires_at: datetime | None = None,
    process: str = "cli",
    now: datetime | None = None,
) -> MadeToken:
    """Make a token for `user`. Raises Invalid without a name to know it by."""
    name = name.strip()[:100]
    if not name:
        raise Invalid("a token needs a name")
    now = now or db_now()
    prefix = _random(PREFIX_CHARS)
    text = f"qsc_{prefix}_{_random(SECRET_CHARS)}"
    token = ApiToken.objects.create(
        user=user,
        name=name,
        prefix=prefix,
        digest=_digest(text),
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
            "object": f"token {name} of {user.username}",
            "prefix": prefix,
            "expires_at": expires_at,
        },
    )
    return MadeToken(token=token, text=text)


def token_verify(*, text: str, now: datetime | None = None) -> ApiToken | None:
    """The live token of an active person that `text` is, or None; notes its use to the minute."""
    match = TOKEN_PATTERN.match(text)
    token = (
        ApiToken.objects.select_related("user").filter(prefix=match.group(1)).first()
        if match
        else None
    )
    # Compare always, so that time does not tell whether a prefix exists.
    same = hmac.compare_digest(token.digest if token else _NO_DIGEST, _digest(text))
    if token is None or not same or token.revoked_at is not None or not token.user.is_active:
        return None
    now = now or db_now()
    if token.expires_at is not None and token.expires_at <= now:
        return None
    if token.last_used_at is None or now - token.last_used_at >= USED_COARSENESS:
        ApiToken.objects.filter(
            Q(last_used_at=None) | Q(last_used_at__lte=now - USED_COARSENESS), pk=token.pk
        ).update(last_used_at=now)
    return token


@transaction.atomic
def token_revoke(
    *, prefix: str, actor: Actor, process: str = "cli", now: datetime | None = None
) -> ApiToken:
    """End a token at once. Raises NotFound. Revoking twice is once."""
    now = now or db_now()
    token = ApiToken.objects.select_related("user").filter(prefix=prefix).first()
    if token is None:
        raise NotFound(f"no token begins with qsc_{prefix}")
    if ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=now):
        audit_append(
            action="token.revoked",
            stage=AuditStage.NOTE,
            actor=actor,
            now=now,
            process=process,
            facts={"object": f"token {token.name} of {token.user.username}", "prefix": prefix},
        )
        token.refresh_from_db()
    return token

"""Bearer tokens: what is stored, and who gets in."""

from __future__ import annotations

from datetime import timedelta

import pytest

from console.actors import Actor
from console.clock import db_now
from console.models import ApiToken, AuditEntry
from console.services.tokens import TOKEN_PATTERN, token_create, token_revoke, token_verify
from console.services.users import user_create, user_reset_password

pytestmark = pytest.mark.django_db
ACTOR = Actor.system("test")


def test_the_secret_is_not_in_the_database(user):
    made = token_create(username=user.username, name="ci", actor=ACTOR)
    assert TOKEN_PATTERN.match(made.text)
    secret = made.text.split("_")[2]
    rows = [str(row) for row in ApiToken.objects.values()] + [
        entry.body for entry in AuditEntry.objects.all()
    ]
    assert not any(secret in row for row in rows)
    assert token_verify(text=made.text).pk == made.token.pk


def test_wrong_expired_revoked_and_inactive_do_not_get_in(user):
    made = token_create(username=user.username, name="ci", actor=ACTOR)
    last = made.text[-1]
    for text in ("", "x", made.text[:-1] + ("a" if last != "a" else "b"), made.text + "a"):
        assert token_verify(text=text) is None
    old = token_create(
        username=user.username,
        name="old",
        actor=ACTOR,
        expires_at=db_now() - timedelta(seconds=1),
        now=db_now() - timedelta(days=1),
    )
    assert token_verify(text=old.text) is None
    user.is_active = False
    user.save()
    assert token_verify(text=made.text) is None
    user.is_active = True
    user.save()
    token_revoke(prefix=made.token.prefix, actor=ACTOR)
    assert token_verify(text=made.text) is None


def test_use_is_noted_to_the_minute(user, django_assert_num_queries):
    made = token_create(username=user.username, name="ci", actor=ACTOR)
    now = db_now()
    token_verify(text=made.text, now=now)
    with django_assert_num_queries(1):
        token_verify(text=made.text, now=now + timedelta(seconds=30))
    assert ApiToken.objects.get(pk=made.token.pk).last_used_at == now


def test_a_reset_password_is_the_only_one_that_works(user):
    user_reset_password(username="ana", password="another-long-password", actor=ACTOR)
    user.refresh_from_db()
    assert user.check_password("another-long-password")


@pytest.mark.parametrize("password", ["short", "password12345", "benjamin-benjamin"])
def test_weak_passwords_are_refused(db, password):
    from console.exceptions import Invalid

    with pytest.raises(Invalid):
        user_create(username="benjamin-benjamin", password=password, actor=ACTOR)

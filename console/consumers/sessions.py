"""Which log-ins are still good. Called in a thread."""

from __future__ import annotations

from collections.abc import Collection

from django.contrib.sessions.models import Session
from django.utils import timezone

from console.models import User

LogIn = tuple[str, int]  # session key, user


def log_ins_alive(log_ins: Collection[LogIn]) -> set[LogIn]:
    """Those whose session has not ended, of whom each is active and has still that password."""
    rows = Session.objects.filter(
        session_key__in={key for key, _ in log_ins}, expire_date__gt=timezone.now()
    )
    sessions = {row.session_key: row.get_decoded() for row in rows}
    people = User.objects.filter(is_active=True).in_bulk({user_id for _, user_id in log_ins})
    return {
        (key, user_id)
        for key, user_id in log_ins
        if (session := sessions.get(key)) is not None
        and str(session.get("_auth_user_id", "")) == str(user_id)
        and (user := people.get(user_id)) is not None
        and session.get("_auth_user_hash") == user.get_session_auth_hash()
    }

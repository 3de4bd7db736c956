"""Forms that show a secret once: the same form posted twice makes one thing only."""

from __future__ import annotations

from django.http import HttpRequest

_USED = "used-form-keys"
_KEPT = 50


def is_first(request: HttpRequest, key: str) -> bool:
    """True the first time that this log-in posts a form of this key, which it notes."""
    used = list(request.session.get(_USED, []))
    if key in used:
        return False
    request.session[_USED] = [*used, key][-_KEPT:]
    return True

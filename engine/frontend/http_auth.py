"""Who may call which route: an API key for serving, an admin key for changing the engine.

Routes declare their class; a route without one cannot be built. Keys are compared in constant time
and never logged.
"""

from __future__ import annotations

import hmac
from enum import StrEnum

from starlette.requests import Request
from starlette.responses import Response

from engine.config import EngineConfig
from engine.frontend.http_errors import json_response


class Access(StrEnum):
    """What a route needs."""

    OPEN = "open"  # health and metrics
    NORMAL = "normal"  # the API key, where one is set
    ADMIN = "admin"  # the admin key where one is set, else the API key where one is set


def refusal(request: Request, access: Access, config: EngineConfig) -> Response | None:
    """The 401 for this request, or None when it may pass."""
    if access is Access.OPEN:
        return None
    if access is Access.ADMIN and config.admin_api_key:
        accepted = [config.admin_api_key]
    else:
        accepted = [key for key in (config.api_key, config.admin_api_key) if key]
        if not config.api_key:
            accepted = []
    if not accepted:
        return None
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    given = token.encode() if scheme.lower() == "bearer" else b""
    if any(hmac.compare_digest(given, key.encode()) for key in accepted):
        return None
    return json_response({"error": "Unauthorized"}, 401)

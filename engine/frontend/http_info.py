"""Read-only routes: health, models, loads, metrics. No secret in any of them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from engine.frontend.core import Frontend


async def health(request: Request) -> Response:
    """200 while some rank can serve; needs no free slot and generates nothing."""
    frontend: Frontend = request.app.state.frontend
    return Response(status_code=200 if frontend.is_serving else 503)

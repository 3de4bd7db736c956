"""GET /healthz: the web process is live when it answers; the rest it tells."""

from __future__ import annotations

from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from console.selectors.health import health_read


@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """Always 200 while live: a supervisor must not kill the web for a database that is away."""
    health = health_read()
    return JsonResponse(
        {
            "live": True,
            "status": "ok" if health.is_well else "degraded",
            "parts": health.parts,
            "engines": health.engines,
        }
    )

"""What every response carries, and how static files and API errors are answered."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from typing import IO

import structlog
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from whitenoise.middleware import WhiteNoiseMiddleware

from api.problems import CONTENT_TYPE, problem_from_response

GetResponse = Callable[[HttpRequest], HttpResponseBase]

CHUNK_BYTES = 1 << 16


class RequestIdMiddleware:
    """Names each request, in its logs, audit entries, problem documents and X-Request-Id."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Bind a new id; a caller's own is not believed."""
        request_id = uuid.uuid4().hex
        request.request_id = request_id  # type: ignore[attr-defined]  # Django's way to hand on
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            response = self.get_response(request)
        response["X-Request-Id"] = request_id
        return response


class ProblemMiddleware:
    """Under /api/, turns every other error page (404, 405, 400, 403, 500) into problem+json."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Pass on what is fine, or is a problem document already."""
        response = self.get_response(request)
        if (
            response.status_code >= 400
            and request.path.startswith("/api/")
            and isinstance(response, HttpResponse)
            and not response.get("Content-Type", "").startswith(CONTENT_TYPE)
        ):
            return problem_from_response(request, response)
        return response


class HeadersMiddleware:
    """Headers that Django has no setting for."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Add them, unless a view chose its own."""
        response = self.get_response(request)
        response.headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
        response.headers.setdefault(
            "Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"
        )
        response.headers.setdefault("Cache-Control", "no-store")
        return response


class StaticMiddleware(WhiteNoiseMiddleware):
    """WhiteNoise, streaming the way ASGI wants it."""

    @staticmethod
    def serve(static_file: object, request: HttpRequest) -> HttpResponseBase:
        """The file, or nothing of it (304, HEAD); under ASGI as an asynchronous iterator."""
        response: HttpResponseBase = WhiteNoiseMiddleware.serve(static_file, request)
        if isinstance(request, ASGIRequest):
            file = getattr(response, "file_to_stream", None)
            response.streaming_content = _chunks(file)  # type: ignore[attr-defined]
        return response


async def _chunks(file: IO[bytes] | None) -> AsyncIterator[bytes]:
    while file is not None and (chunk := file.read(CHUNK_BYTES)):
        yield chunk

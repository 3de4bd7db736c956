"""Errors as RFC 9457 problem documents, wherever under /api/ they arise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any  # members of a problem document

from django.http import HttpRequest, HttpResponse

from console.exceptions import ConsoleError

CONTENT_TYPE = "application/problem+json"


def problem(
    request: HttpRequest,
    *,
    status: int,
    code: str,
    detail: str,
    title: str = "",
    members: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> HttpResponse:
    """A problem document. `code` is for programs, `detail` for people."""
    request_id = getattr(request, "request_id", "")
    document = {
        **(members or {}),
        "type": f"urn:quiesce:problem:{code}",
        "title": title or HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        "instance": request.path,
        "request_id": request_id,
    }
    response = HttpResponse(
        json.dumps(document, allow_nan=False), status=status, content_type=CONTENT_TYPE
    )
    for name, value in (headers or {}).items():
        response[name] = value
    return response


def problem_of(request: HttpRequest, error: ConsoleError) -> HttpResponse:
    """The document of one of our own errors."""
    headers = {"Retry-After": "1"} if error.status == HTTPStatus.SERVICE_UNAVAILABLE else None
    return problem(
        request,
        status=error.status,
        code=error.code,
        title=error.title,
        detail=error.message,
        members=error.facts,
        headers=headers,
    )


def problem_from_response(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """An error that Django or a middleware answered with its own page, as a document."""
    phrase = HTTPStatus(response.status_code).phrase
    # What other middlewares have added stays; what describes the old body goes.
    headers = {
        name: value
        for name, value in response.items()
        if name.lower() not in ("content-type", "content-length", "content-encoding", "etag")
    }
    made = problem(
        request,
        status=response.status_code,
        code=phrase.lower().replace(" ", "_"),
        detail=_DETAILS.get(response.status_code, phrase),
        headers=headers,
    )
    made.cookies = response.cookies
    return made


_DETAILS = {
    400: "The request is malformed.",
    404: "Nothing is found at this path.",
    405: "This path does not take this method; see Allow.",
    413: "The body is too large.",
    500: "The console failed; its log has the request id.",
}

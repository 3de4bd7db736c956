"""Errors of the HTTP surface: one exception, two shapes of body (native, OpenAI).

Every refusal names the field and the bound; nothing here shows a trace or a secret.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.responses import Response

Shape = Literal["native", "openai"]


class HTTPError(Exception):
    """A request is refused with this status and sentence. `param` names the field."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        kind: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.kind = kind
        self.retry_after_s = retry_after_s


def json_response(
    body: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Strict JSON: msgspec writes no NaN and no Infinity."""
    return Response(
        msgspec.json.encode(body), status, headers=headers, media_type="application/json"
    )


def error_body(error: HTTPError, shape: Shape) -> dict[str, object]:
    """The body of a refusal."""
    if shape == "openai":
        return {
            "object": "error",
            "message": error.message,
            "type": error.kind or _kind(error.status),
            "param": error.param,
            "code": error.status,
        }
    inner: dict[str, object] = {"message": error.message}
    if error.param is not None:
        inner["param"] = error.param
    # SGLang has two shapes here, one from its own checks and one from its framework's: both.
    return {"error": inner} | error_body(error, "openai")


def error_response(error: HTTPError, shape: Shape = "native") -> Response:
    """The reply for a refusal."""
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    return json_response(error_body(error, shape), error.status, headers)


def _kind(status: int) -> str:
    if status < 500:
        return "NotFoundError" if status == 404 else "BadRequestError"
    return "ServiceUnavailableError" if status == 503 else "InternalServerError"

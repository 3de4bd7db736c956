"""The NinjaAPI: authentication, strict bodies, and every error as a problem document."""

from __future__ import annotations

import math
from typing import Any

import structlog
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import DatabaseError
from django.http import Http404, HttpRequest, HttpResponse
from ninja import NinjaAPI, Swagger
from ninja.errors import (
    AuthenticationError,
    AuthorizationError,
    HttpError,
    Throttled,
    ValidationError,
)

from api.auth import AUTH
from api.limits import CallerThrottle
from api.parser import StrictParser
from api.problems import CONTENT_TYPE, problem, problem_of
from api.routers.audit import router as audit_router
from api.routers.backends import router as backends_router
from api.routers.engines import router as engines_router
from api.routers.events import router as events_router
from api.routers.jobs import router as jobs_router
from api.routers.keys import router as keys_router
from api.routers.tokens import router as tokens_router
from api.routers.uploads import router as uploads_router
from api.routers.users import me_router
from api.routers.users import router as users_router
from console.choices import JobKind
from console.exceptions import BodyTooLarge, ConsoleError

log = structlog.get_logger(__name__)

# Operations that need no log-in, by (method, path): none. /healthz, the docs and the schema are
# plain views beside the operations.
PUBLIC_OPERATIONS: frozenset[tuple[str, str]] = frozenset()

_ANYWHERE = ((429, "Too Many Requests"), (500, "A fault of the console"))
_PROBLEM_SCHEMA = {"schema": {"$ref": "#/components/schemas/Problem"}}
_PROBLEM_AS_JSON = {"application/json": _PROBLEM_SCHEMA}
_PROBLEM = {CONTENT_TYPE: _PROBLEM_SCHEMA}


class _Api(NinjaAPI):
    """Every operation may also be throttled, and may meet a fault of ours."""

    def get_openapi_schema(self, **options: Any) -> Any:
        """The document, with the answers that any operation can give, and problems as what they
        are sent as."""
        schema = super().get_openapi_schema(**options)
        for methods in schema["paths"].values():
            for operation in methods.values():
                answers = operation["responses"]
                for status, words in _ANYWHERE:
                    answers.setdefault(status, {"description": words, "content": _PROBLEM})
                for answer in answers.values():
                    if answer.get("content") == _PROBLEM_AS_JSON:
                        answer["content"] = _PROBLEM
        return schema


api = _Api(
    title="Quiesce",
    version="1",
    description="Change a serving engine on every rank or on none, on record.",
    urls_namespace="api-1",
    auth=AUTH,
    parser=StrictParser(),
    throttle=[CallerThrottle(f"{settings.API_RATE_PER_SECOND}/s")],
    docs=Swagger(settings={"persistAuthorization": False}),
)
api.add_router("/engines", engines_router)
api.add_router("/backends", backends_router)
api.add_router("/keys", keys_router)
api.add_router("/jobs", jobs_router)
api.add_router("/uploads", uploads_router)
api.add_router("/audit", audit_router)
api.add_router("/tokens", tokens_router)
api.add_router("/users", users_router)
api.add_router("/me", me_router)
api.add_router("/events", events_router)


@api.exception_handler(ConsoleError)
def on_console_error(request: HttpRequest, error: ConsoleError) -> HttpResponse:
    """One of ours."""
    return problem_of(request, error)


def _path(item: dict[str, Any]) -> str:
    """Which field, as the sender wrote it: without where it came in and which schema was taken."""
    parts = [str(part)[:64] for part in item["loc"][1:]]
    if parts[:1] == ["body"]:
        parts = parts[1:]
    if parts[:1] and parts[0] in JobKind.values:
        parts = parts[1:]
    if not parts and str(item["type"]).startswith("union_tag"):
        parts = ["kind"]
    return ".".join(parts) or str(item["loc"][0])


def _words(item: dict[str, Any]) -> str:
    """What is wrong, without what was sent: a secret may have been sent by mistake."""
    text = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "union_tag_invalid":
        return f"must be one of {text.rpartition('expected tags: ')[2]}"
    return text


@api.exception_handler(ValidationError)
def on_validation_error(request: HttpRequest, error: ValidationError) -> HttpResponse:
    """A field is missing, unknown or out of bounds: each is named, its value is not repeated."""
    fields: list[dict[str, Any]] = [
        {
            "field": _path(item),
            "in": str(item["loc"][0]),
            "message": _words(item),
            "type": str(item["type"]),
        }
        for item in error.errors
    ]
    detail = "; ".join(f"{field['field']}: {field['message']}" for field in fields[:5])
    return problem(
        request,
        status=422,
        code="invalid",
        title="Invalid request",
        detail=detail,
        members={"errors": fields[:50]},
    )


@api.exception_handler(AuthenticationError)
def on_unauthenticated(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    """No, wrong, expired, revoked: the same words, so that nothing is learnt from them."""
    return problem(
        request,
        status=401,
        code="unauthenticated",
        detail="Send a valid bearer token, or log in.",
        headers={"WWW-Authenticate": 'Bearer realm="quiesce"'},
    )


@api.exception_handler(AuthorizationError)
def on_unauthorized(request: HttpRequest, error: AuthorizationError) -> HttpResponse:
    """Known, but not allowed."""
    return problem(request, status=403, code="forbidden", detail="This is not allowed to you.")


@api.exception_handler(Throttled)
def on_throttled(request: HttpRequest, error: Throttled) -> HttpResponse:
    """More than this caller's share of a second."""
    return problem(
        request,
        status=429,
        code="too_many_requests",
        detail=f"more than {settings.API_RATE_PER_SECOND} requests in a second; wait a little",
        headers={"Retry-After": str(max(1, math.ceil(error.wait or 1)))},
    )


@api.exception_handler(HttpError)
def on_http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
    """ninja's own: an unreadable body (ours is behind it), or a missing CSRF token."""
    if isinstance(error.__cause__, ConsoleError):
        return problem_of(request, error.__cause__)
    if isinstance(error.__cause__, RequestDataTooBig):
        return on_too_big(request, error.__cause__)
    code = "csrf_failed" if error.status_code == 403 else "bad_request"
    return problem(request, status=error.status_code, code=code, detail=str(error))


@api.exception_handler(RequestDataTooBig)
def on_too_big(request: HttpRequest, error: RequestDataTooBig) -> HttpResponse:
    """The body passes DATA_UPLOAD_MAX_MEMORY_SIZE."""
    return problem_of(request, BodyTooLarge("the body is too large"))


@api.exception_handler(Http404)
def on_not_found(request: HttpRequest, error: Http404) -> HttpResponse:
    """No such path."""
    return problem(request, status=404, code="not_found", detail="Nothing is found at this path.")


@api.exception_handler(DatabaseError)
def on_database_error(request: HttpRequest, error: DatabaseError) -> HttpResponse:
    """The database is down or overloaded; nothing was done."""
    log.error("database error", error=repr(error))
    return problem(
        request,
        status=503,
        code="unavailable",
        detail="The database did not answer; nothing was done.",
        headers={"Retry-After": "1"},
    )


@api.exception_handler(Exception)
def on_fault(request: HttpRequest, error: Exception) -> HttpResponse:
    """A fault of ours: logged with the request id, told without inner workings."""
    log.error("request failed", exc_info=error)
    return problem(
        request,
        status=500,
        code="internal_server_error",
        detail="The console failed; its log has the request id.",
    )

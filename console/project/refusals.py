"""Every attempt to change something, and every denied reading, is in the audit log."""

from __future__ import annotations

import json

import structlog
from django.db import DatabaseError, transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse

from api.problems import CONTENT_TYPE, problem_of
from console.choices import Via
from console.exceptions import AuditUnavailable
from console.pages.shell import console_error_render
from console.project.middleware import GetResponse
from console.requests import asker_of
from console.services.attempts import Coalesced, attempt_note
from console.services.audit import Fact, entries_noted

log = structlog.get_logger(__name__)

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
DENIED = frozenset({302, 401, 403})
NOT_RECORDED = "The audit log could not be written; nothing was done."


class RefusalsMiddleware:
    """Appends an entry for a request that was to change something, failed, and left no entry."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response
        self._coalesced = Coalesced()

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer 503 instead of a refusal that cannot be recorded."""
        if request.method in SAFE_METHODS:
            return self._read(request)
        with entries_noted() as numbers:
            response = self.get_response(request)
            if numbers or not (response.status_code >= 400 or _is_turned_away(request, response)):
                return response
            try:
                self._note(request, response)
            except DatabaseError as error:
                log.error("a refusal could not be recorded", error=repr(error))
                if response.status_code < 500:
                    return _unavailable(request)
        return response

    def _read(self, request: HttpRequest) -> HttpResponseBase:
        """A reading that is denied changes nothing; one of many equal ones is noted."""
        response = self.get_response(request)
        if response.status_code in (401, 403):
            try:
                self._note(request, response)
            except DatabaseError as error:
                log.error("a denied reading could not be recorded", error=repr(error))
        return response

    def _note(self, request: HttpRequest, response: HttpResponseBase) -> None:
        is_api = request.path.startswith("/api/")
        actor = asker_of(request, via=Via.API if is_api else Via.UI)
        match = request.resolver_match
        route = match.route if match else "no such path"
        named = match.kwargs if match else {}
        facts: dict[str, Fact] = {
            "object": f"{request.method} {route}",
            "status": response.status_code,
            "code": _code_of(response),
            "named": {name: str(value)[:100] for name, value in named.items()},
        }
        if actor.user_id is None or request.method in SAFE_METHODS:
            who = actor.name if actor.user_id is not None else actor.source_ip
            key = (who, actor.token_prefix, route, str(response.status_code))
            left_out = self._coalesced.left_out(key)
            if left_out is None:
                return
            facts["left_out"] = left_out
        result = "denied" if response.status_code in DENIED else "refused"
        if response.status_code >= 500:
            result = "failed"
        attempt_note(action=f"request.{result}", result=result, actor=actor, facts=facts)


def _is_turned_away(request: HttpRequest, response: HttpResponseBase) -> bool:
    """A stranger who is sent to the log-in instead of to what was posted."""
    is_person = request.user.is_authenticated
    return (
        response.status_code == 302
        and not is_person
        and request.path not in (reverse("login"), reverse("logout"))
    )


def _code_of(response: HttpResponseBase) -> str:
    if isinstance(response, HttpResponse) and response.get("Content-Type") == CONTENT_TYPE:
        return str(json.loads(response.content).get("code", ""))
    return ""


def _unavailable(request: HttpRequest) -> HttpResponse:
    error = AuditUnavailable(NOT_RECORDED)
    if transaction.get_connection().needs_rollback:
        transaction.set_rollback(False)
    is_api = request.path.startswith("/api/")
    return problem_of(request, error) if is_api else console_error_render(request, error)

"""GET /events: what changed, in order, as server-sent events; by number, so that none is missed.

The numbers are those of the audit log: each change of a job or an engine is one entry there, in
the transaction that made it, without a gap. Live messages of pages carry the same number.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from ninja import Query, Router

from api.problems import problem
from api.query import only_query
from api.schemas.inputs import EventQuery
from api.schemas.outputs import Problem
from console.access import Act, Rights
from console.clock import db_now
from console.exceptions import Invalid
from console.models import ApiToken, User
from console.requests import rights_in, token_of
from console.selectors.access import rights_of, token_is_live
from console.selectors.audit import audit_head
from console.selectors.engines import engine_list
from console.selectors.events import events_after, events_begin
from console.selectors.jobs import jobs_pending
from console.selectors.payloads import engine_payload, job_payload

router = Router(tags=["events"])

# Each event of the stream, as OpenAPI 3.1 describes one.
_EVENT = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "The number to go on from"},
        "event": {"type": "string", "enum": ["job", "engine", "alive", "closed"]},
        "data": {"type": "string", "description": "A JSON object"},
    },
    "required": ["id", "event", "data"],
}
LOOK_EVERY_S = 0.25
ALIVE_EVERY_S = 5.0


def _since(request: HttpRequest, query: EventQuery) -> int:
    """Where to go on from: the query's number, the browser's own, or the newest entry."""
    text = request.headers.get("Last-Event-ID", "").strip()
    if query.since is not None:
        return query.since
    if not text:
        return audit_head()
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Invalid("Last-Event-ID must be a number that this stream gave")
    return int(text)


def _gone(request: HttpRequest, since: int, begin: int, rights: Rights) -> HttpResponse:
    """History before `begin` was closed: how all stands, and the number to go on from."""
    head = audit_head()  # first: what changes meanwhile is told again
    snapshot = {
        "seq": head,
        "jobs": [job_payload(job) for job in jobs_pending(rights=rights)],
        "engines": [engine_payload(view) for view in engine_list(rights=rights)],
    }
    return problem(
        request,
        status=410,
        code="history_gone",
        title="History gone",
        detail=f"entries up to {begin} are closed; go on from the snapshot's seq, not from {since}",
        members={"snapshot": snapshot, "begin": begin},
    )


@router.get(
    "",
    response={401: Problem, 403: Problem, 410: Problem, 422: Problem, 503: Problem},
    url_name="events",
    summary="Follow what changes",
    openapi_extra={
        "responses": {
            200: {
                "description": "Server-sent events: job, engine and alive, each with its number",
                "content": {"text/event-stream": {"schema": _EVENT}},
            }
        }
    },
)
@only_query("since", "for_s")
def events(request: HttpRequest, query: Query[EventQuery]) -> HttpResponseBase:
    """Every change after entry `since` of what one may see, then what comes, until `for_s`."""
    rights = rights_in(request)
    rights.require(Act.READ)
    since, begin, head = _since(request, query), events_begin(), audit_head()
    if since > head:
        raise Invalid(f"since is {since}, and the newest entry is {head}")
    if since < begin:
        return _gone(request, since, begin, rights)
    token = token_of(request)
    user = token.user if token is not None else request.user
    assert isinstance(user, User), "authenticated"
    response = StreamingHttpResponse(
        _stream(user.pk, token.pk if token else None, since, query.for_s),
        content_type="text/event-stream",
    )
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response


def _rights_now(user_id: int, token_id: int | None) -> Rights | None:
    """As of now; None once the person or the token may not come in any more."""
    user = User.objects.filter(pk=user_id, is_active=True).first()
    if user is None or token_id is None:
        return rights_of(user) if user else None
    token = ApiToken.objects.filter(pk=token_id).first()
    return rights_of(user, token) if token and token_is_live(token, db_now()) else None


def _read(
    user_id: int, token_id: int | None, since: int
) -> tuple[int, list[dict[str, Any]]] | None:
    rights = _rights_now(user_id, token_id)
    if rights is None or not rights.may(Act.READ):
        return None
    return events_after(since, rights=rights)


def _line(event: str, seq: int, data: dict[str, Any]) -> bytes:
    return f"id: {seq}\nevent: {event}\ndata: {json.dumps(data)}\n\n".encode()


async def _stream(
    user_id: int, token_id: int | None, since: int, for_s: float
) -> AsyncIterator[bytes]:
    ends, said_at = time.monotonic() + for_s, 0.0
    while True:
        found = await sync_to_async(_read)(user_id, token_id, since)
        if found is None:
            yield _line("closed", since, {"why": "the token or the role has ended"})
            return
        read_to, items = found
        for item in items:
            yield _line(item["type"], item["seq"], item)
            said_at = time.monotonic()
        is_more, since = read_to > since, max(since, read_to)
        if time.monotonic() - said_at >= ALIVE_EVERY_S:
            said_at = time.monotonic()
            yield _line("alive", since, {"seq": since})
        if time.monotonic() >= ends:
            return
        if not is_more:
            await asyncio.sleep(LOOK_EVERY_S)

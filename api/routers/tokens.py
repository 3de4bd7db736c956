"""GET /tokens, POST /tokens, POST /tokens/{prefix}/revoke."""

from typing import Any

from django.http import HttpRequest
from ninja import Router, Status

from api.auth import actor
from api.query import only_query
from api.schemas.outputs import Problem
from api.schemas.people import MadeTokenOut, ReasonIn, TokenIn, TokenOut, TokenPage
from console.clock import db_now
from console.requests import rights_in
from console.selectors.people import token_payload, tokens_list
from console.services.tokens import token_create, token_revoke

router = Router(tags=["tokens"])

_PROBLEMS = {401: Problem, 403: Problem, 422: Problem, 503: Problem}
_BODY_PROBLEMS = {
    400: Problem,
    404: Problem,
    409: Problem,
    413: Problem,
    415: Problem,
    **_PROBLEMS,
}


@router.get(
    "", response={200: TokenPage, **_PROBLEMS}, url_name="tokens", summary="List one's tokens"
)
@only_query()
def tokens(request: HttpRequest) -> dict[str, Any]:
    """One's own; those of everybody for an admin. Never a token's text."""
    now = db_now()
    found = tokens_list(rights=rights_in(request))
    return {"items": [token_payload(one, now) for one in found], "next_cursor": None}


@router.post("", response={201: MadeTokenOut, **_BODY_PROBLEMS}, summary="Make a token")
@only_query()
def create(request: HttpRequest, body: TokenIn) -> Status[dict[str, Any]]:
    """Its text is in this answer, and never again."""
    asker = actor(request)
    made = token_create(
        username=body.owner or asker.name,
        name=body.name,
        scopes=None if body.scopes is None else [str(scope) for scope in body.scopes],
        reach=body.engines,
        expires_at=body.expires_at,
        actor=asker,
        process="web",
    )
    return Status(201, {**token_payload(made.token, db_now()), "token": made.text})


@router.post(
    "/{prefix}/revoke",
    response={200: TokenOut, **_BODY_PROBLEMS},
    url_name="token-revoke",
    summary="Revoke a token",
)
@only_query()
def revoke(request: HttpRequest, prefix: str, body: ReasonIn | None = None) -> dict[str, Any]:
    """It opens nothing any more, at once. Twice is once."""
    token = token_revoke(
        prefix=prefix.removeprefix("qsc_")[:8],
        reason=body.reason if body else "",
        actor=actor(request),
        process="web",
    )
    return token_payload(token, db_now())

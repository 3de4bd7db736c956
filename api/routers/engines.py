"""GET, POST /engines; GET, PATCH, DELETE /engines/{name}; GET /engines/{name}/checkpoints."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Status

from api.auth import actor
from api.query import only_query
from api.schemas.inputs import CheckpointQuery, EnginesQuery
from api.schemas.outputs import EngineOut, EnginePage, Problem
from api.schemas.people import EngineChangeIn, EngineIn, ReasonIn
from api.schemas.weights import CheckpointsOut
from console.access import Act
from console.requests import rights_in
from console.selectors.access import labels_of_engine
from console.selectors.checkpoints import checkpoints_ask
from console.selectors.engines import engine_get, engine_named, engine_page
from console.selectors.payloads import checkpoints_payload, engine_payload
from console.services.engines import engine_change, engine_register, engine_remove

router = Router(tags=["engines"])

_PROBLEMS = {401: Problem, 403: Problem, 422: Problem, 503: Problem}
_BODY_PROBLEMS = {400: Problem, 409: Problem, 413: Problem, 415: Problem, **_PROBLEMS}


@router.get(
    "",
    response={200: EnginePage, 401: Problem, 403: Problem, 422: Problem},
    url_name="engines",
    summary="List engines",
)
@only_query("cursor", "name", "limit")
def engines(request: HttpRequest, query: Query[EnginesQuery]) -> dict[str, Any]:
    """Registered engines and their newest states, by name; `name`: those whose names hold it."""
    views, _, after = engine_page(
        rights=rights_in(request), after=query.cursor, q=query.name, limit=query.limit
    )
    return {"items": [engine_payload(view) for view in views], "next_cursor": after or None}


@router.post("", response={201: EngineOut, **_BODY_PROBLEMS}, summary="Register an engine")
@only_query()
def register(
    request: HttpRequest, response: HttpResponse, body: EngineIn
) -> Status[dict[str, Any]]:
    """Under a name that is free. It shows as offline until the relay has heard from it."""
    asker = actor(request)
    engine_register(**body.dict(), actor=asker, is_new=True, process="web")
    payload = engine_payload(engine_get(name=body.name, rights=asker.rights))
    response["Location"] = payload["links"]["self"]
    return Status(201, payload)


@router.patch(
    "/{name}", response={200: EngineOut, 404: Problem, **_BODY_PROBLEMS}, summary="Change an engine"
)
@only_query()
def change(request: HttpRequest, name: str, body: EngineChangeIn) -> dict[str, Any]:
    """Its labels, its addresses, or whether it takes jobs."""
    asker = actor(request)
    engine_change(name=name, **body.dict(), actor=asker)
    return engine_payload(engine_get(name=name, rights=asker.rights))


@router.delete(
    "/{name}",
    response={204: None, 404: Problem, **_BODY_PROBLEMS},
    summary="Remove an engine from the fleet",
)
@only_query()
def remove(request: HttpRequest, name: str, body: ReasonIn | None = None) -> Status[None]:
    """Refused while a job has not ended. Its jobs and its record stay."""
    engine_remove(name=name, reason=body.reason if body else "", actor=actor(request))
    return Status(204, None)


@router.get(
    "/{name}",
    response={200: EngineOut, 401: Problem, 404: Problem, 422: Problem},
    url_name="engine",
    summary="Read an engine",
)
@only_query()
def engine(request: HttpRequest, name: str) -> dict[str, Any]:
    """One engine and its newest state."""
    return engine_payload(engine_get(name=name, rights=rights_in(request)))


@router.get(
    "/{name}/checkpoints",
    response={
        200: CheckpointsOut,
        401: Problem,
        403: Problem,
        404: Problem,
        409: Problem,
        422: Problem,
        503: Problem,
    },
    url_name="checkpoints",
    summary="List what could be loaded from disk",
)
@only_query("path")
def checkpoints(request: HttpRequest, name: str, query: Query[CheckpointQuery]) -> dict[str, Any]:
    """Asks the engine: its roots and the folders under them, or how one folder looks."""
    rights = rights_in(request)
    engine = engine_named(name, rights=rights)
    rights.require(Act.WEIGHTS, labels_of_engine(engine))
    found = checkpoints_ask(engine=engine, path=query.path)
    return checkpoints_payload(found)

"""GET /engines, GET /engines/{name}, GET /engines/{name}/checkpoints."""

from typing import Any

from django.http import HttpRequest
from ninja import Query, Router

from api.query import only_query
from api.schemas.inputs import CheckpointQuery
from api.schemas.outputs import EngineOut, EnginePage, Problem
from api.schemas.weights import CheckpointsOut
from console.selectors.checkpoints import checkpoints_ask
from console.selectors.engines import engine_get, engine_list, engine_named
from console.selectors.payloads import checkpoints_payload, engine_payload

router = Router(tags=["engines"])


@router.get(
    "",
    response={200: EnginePage, 401: Problem, 422: Problem},
    url_name="engines",
    summary="List engines",
)
@only_query()
def engines(request: HttpRequest) -> dict[str, Any]:
    """Every registered engine and its newest state."""
    return {"items": [engine_payload(view) for view in engine_list()], "next_cursor": None}


@router.get(
    "/{name}",
    response={200: EngineOut, 401: Problem, 404: Problem, 422: Problem},
    url_name="engine",
    summary="Read an engine",
)
@only_query()
def engine(request: HttpRequest, name: str) -> dict[str, Any]:
    """One engine and its newest state."""
    return engine_payload(engine_get(name=name))


@router.get(
    "/{name}/checkpoints",
    response={
        200: CheckpointsOut,
        401: Problem,
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
    found = checkpoints_ask(engine=engine_named(name), path=query.path)
    return checkpoints_payload(found)

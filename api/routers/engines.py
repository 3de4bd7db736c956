"""GET /engines, GET /engines/{name}."""

from typing import Any

from django.http import HttpRequest
from ninja import Router

from api.query import only_query
from api.schemas.outputs import EngineOut, EnginePage, Problem
from console.selectors.engines import engine_get, engine_list
from console.selectors.payloads import engine_payload

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

"""GET /engines, GET /engines/{name}."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Query, Router

from api.schemas.inputs import NoQuery
from api.schemas.outputs import EngineOut, EnginePage, Problem
from console.selectors.engines import engine_get, engine_list
from console.selectors.payloads import engine_payload

router = Router(tags=["engines"])


@router.get("", response={200: EnginePage, 401: Problem, 422: Problem}, url_name="engines")
def engines(request: HttpRequest, query: Query[NoQuery]) -> dict[str, Any]:
    """Every registered engine and its newest state."""
    return {"items": [engine_payload(view) for view in engine_list()], "next_cursor": None}


@router.get(
    "/{name}",
    response={200: EngineOut, 401: Problem, 404: Problem, 422: Problem},
    url_name="engine",
)
def engine(request: HttpRequest, name: str, query: Query[NoQuery]) -> dict[str, Any]:
    """One engine and its newest state."""
    return engine_payload(engine_get(name=name))

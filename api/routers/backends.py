"""GET /backends: the kinds of storage backend and the settings that each of them has."""

from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema

from api.query import only_query
from api.schemas.outputs import Problem
from console.selectors.payloads import backends_payload

router = Router(tags=["backends"])


class SettingOut(Schema):
    """One setting. A secret is taken and never given back; bounds are inclusive unless said."""

    name: str
    kind: str
    help: str
    is_required: bool
    default: str | int | float | bool | None
    choices: list[str]
    low: float | None
    high: float | None
    is_low_exclusive: bool
    max_length: int | None
    pattern: str
    is_common: bool


class BackendOut(Schema):
    """A kind of storage backend; experimental: tried on a stand-in only."""

    backend: str
    about: str
    is_experimental: bool
    settings: list[SettingOut]


class BackendPage(Schema):
    """All kinds; there is one page."""

    items: list[BackendOut]
    next_cursor: str | None


@router.get(
    "",
    response={200: BackendPage, 401: Problem, 422: Problem},
    url_name="backends",
    summary="List kinds of storage backend",
)
@only_query()
def backends(request: HttpRequest) -> dict[str, Any]:
    """What may be attached, setting by setting. Which engine can is told with the engine."""
    return {"items": backends_payload(), "next_cursor": None}

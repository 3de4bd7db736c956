"""GET /keys: what an engine elsewhere must know to let this console in."""

from django.http import HttpRequest
from ninja import Router

from api.query import only_query
from api.schemas.outputs import KeysOut, Problem
from console.access import Act
from console.gateways.keys import console_key_public
from console.requests import rights_in

router = Router(tags=["engines"])


@router.get(
    "",
    response={200: KeysOut, 401: Problem, 403: Problem, 422: Problem},
    url_name="keys",
    summary="Read the console's public keys",
)
@only_query()
def keys(request: HttpRequest) -> dict[str, str | None]:
    """No secret: an engine's file of authorized keys names it."""
    rights_in(request).require(Act.READ)
    return {"curve_public_key": console_key_public()}

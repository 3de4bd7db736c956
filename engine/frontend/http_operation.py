"""What every admin route that starts an operation shares: its options, its wait, its reply.

An operation without an id of its own ends with its caller, as long as nothing is decided.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.frontend.core import Frontend
from engine.frontend.http_errors import json_response
from engine.frontend.http_json import convert
from engine.frontend.operations import Follower
from engine.frontend.query import no_others, number, one
from engine.frontend.streams import unless_gone
from engine.protocol import (
    MAX_TIMEOUT_S,
    ErrorCode,
    Mode,
    Operation,
    OperationResult,
    OperationView,
    Outcome,
    ProtocolError,
)
from engine.protocol.types import OperationId

STATUS = {
    ErrorCode.OPERATION_PENDING: 409,
    ErrorCode.UNKNOWN_OPERATION: 404,
    ErrorCode.NOT_CANCELLABLE: 409,
    ErrorCode.INVALID_ARGUMENT: 400,
    ErrorCode.SEALED: 409,
    ErrorCode.TOO_OLD: 409,
    ErrorCode.TOO_LATE: 400,
}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that a route's body shares with all others; its struct inherits them."""

    timeout: Annotated[float, msgspec.Meta(ge=0, le=MAX_TIMEOUT_S)] = 0.0
    mode: Mode = Mode.WAIT
    op_id: OperationId | None = None


class _Id(msgspec.Struct):
    op_id: OperationId  # the control socket's rule


def options_of(request: Request, more: Collection[str] = ()) -> Options:
    """The same from the query of a route without a body; `more` are its other parameters. Raises
    HTTPError."""
    query = request.query_params
    no_others(query, {"timeout", "mode", "op_id", *more})
    return Options(
        timeout=number(query, "timeout", default=0.0, low=0.0, high=MAX_TIMEOUT_S),
        mode=Mode(one(query, "mode", default=Mode.WAIT, choices=Mode)),
        op_id=op_id_of(request),
    )


def op_id_of(request: Request) -> str | None:
    """The operation's id from the query, if it names one. Raises HTTPError."""
    op_id = request.query_params.get("op_id")
    return None if op_id is None else convert({"op_id": op_id}, _Id, {}).op_id


def wants_json(request: Request) -> bool:
    """The caller asked for every rank's result."""
    return "application/json" in request.headers.get("accept", "")


def _nothing() -> None:
    """Nobody wants to know."""


async def run(
    request: Request,
    operation: Operation,
    options: Options,
    begun: Callable[[], None] = _nothing,
) -> OperationResult | None:
    """Submit and wait; None when the caller left first. Raises ProtocolError.

    `begun` is called when this very operation was taken, and not another one of the same id.
    """
    frontend: Frontend = request.app.state.frontend
    follower = frontend.operations.submit(
        op_id=options.op_id or f"http-{uuid.uuid4()}",
        operation=operation,
        mode=options.mode,
        timeout_s=options.timeout,
        requested_by="http",
    )
    if frontend.operations.operation_of(follower.op_id) is operation:
        begun()
    return await _wait(request, frontend, follower, is_owned=options.op_id is None)


async def _wait(
    request: Request, frontend: Frontend, follower: Follower, *, is_owned: bool
) -> OperationResult | None:
    """The result; None when the caller left first (an operation without an id ends with it)."""
    result = await unless_gone(request, frontend.operations.result(follower))
    if result is None and is_owned:
        _cancel_if_possible(frontend, follower.op_id)
    return result


def _cancel_if_possible(frontend: Frontend, op_id: str) -> None:
    try:
        frontend.operations.cancel(op_id)
    except ProtocolError as error:
        if error.code not in (ErrorCode.NOT_CANCELLABLE, ErrorCode.UNKNOWN_OPERATION):
            raise


async def answered(
    request: Request,
    operation: Operation,
    options: Options,
    done: str,
    begun: Callable[[], None] = _nothing,
    **more: Any,
) -> Response:
    """Run an operation; SGLang's `success` and `message`, and every rank's part beside them.

    200 when it succeeded on every rank, 400 otherwise. `done` is the message of a success, `more`
    are fields of the reply that SGLang has on this route; a callable gets the result.
    """
    try:
        result = await run(request, operation, options, begun)
    except ProtocolError as error:
        return refusal(error)
    if result is None:
        return Response(status_code=499)  # nobody is left to read it
    ok = result.outcome is Outcome.SUCCEEDED
    extra = {name: made(result) if callable(made) else made for name, made in more.items()}
    body = result_json(result) | {"message": done if ok else result.message} | extra
    return json_response(body, 200 if ok else 400)


def refusal(error: ProtocolError) -> Response:
    """A refused operation in SGLang's shape, with what SGLang does not say."""
    body = {"success": False, "message": error.message} | _error(error)
    return json_response(body, STATUS.get(error.code, 503))


def operation_error(error: ProtocolError) -> Response:
    """A refused command as JSON, naming who holds the engine where that is the reason."""
    return json_response(_error(error), STATUS.get(error.code, 503))


def _error(error: ProtocolError) -> dict[str, Any]:
    body: dict[str, object] = {"message": error.message, "code": error.code}
    if error.holder is not None:
        body |= {"holder": error.holder, "remaining_s": error.remaining_s}
    return {"error": body}


def result_json(result: OperationResult) -> dict[str, Any]:
    """A result, every rank's part in it."""
    body: dict[str, Any] = msgspec.to_builtins(result)
    return {"success": result.outcome is Outcome.SUCCEEDED, **body}


def view_json(view: OperationView) -> dict[str, Any]:
    """An open operation."""
    body: dict[str, Any] = msgspec.to_builtins(view)
    return {"outcome": None, **body}

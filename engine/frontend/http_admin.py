"""Admin routes: flush, abort, and pending operations. SGLang's texts by default, JSON when asked.

The text bodies and their status codes are SGLang's, so that its clients work unchanged; the refusal
of a busy engine adds which places are busy.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from engine.frontend.http_errors import HTTPError, json_response
from engine.frontend.http_json import read_body, read_json
from engine.frontend.http_operation import (
    STATUS,
    Options,
    answered,
    op_id_of,
    operation_error,
    options_of,
    result_json,
    run,
    view_json,
    wants_json,
)
from engine.frontend.query import flag, no_others
from engine.protocol import (
    ErrorCode,
    FlushCache,
    Mode,
    OperationResult,
    Outcome,
    ProtocolError,
    Repair,
)

MAX_REPAIR_S = 600.0
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)
FLUSH_FAILED = "Flush cache failed.\n"
FLUSH_PENDING = "Another flush_cache is already in progress."
FLUSH_TIMED_OUT = "Timed out waiting for idle state."


async def flush_cache(request: Request) -> Response:
    """GET or POST /flush_cache?timeout=&mode=&empty_cache=&op_id="""
    options = options_of(request, {"empty_cache"})
    operation = FlushCache(empty_cache=flag(request.query_params, "empty_cache", default=True))
    try:
        result = await run(request, operation, options)
    except ProtocolError as error:
        return _refused(request, error)
    if result is None:
        return Response(status_code=499)  # nobody is left to read it
    return _flush_answer(request, result)


def _flush_answer(request: Request, result: OperationResult) -> Response:
    ok = result.outcome is Outcome.SUCCEEDED
    if wants_json(request):
        return json_response(result_json(result), 200 if ok else 400)
    if ok:
        text = FLUSHED
    elif result.outcome is Outcome.EXPIRED:
        text = FLUSH_TIMED_OUT
    else:
        text = FLUSH_FAILED + result.message + "\n"
    return PlainTextResponse(text, 200 if ok else 400)


def _refused(request: Request, error: ProtocolError) -> Response:
    """SGLang answers 400 to a second flush; 409 is for those who ask for JSON."""
    if wants_json(request):
        return operation_error(error)
    if error.code is ErrorCode.OPERATION_PENDING:
        return PlainTextResponse(FLUSH_PENDING, 400)
    status = STATUS.get(error.code, 503)
    return PlainTextResponse(FLUSH_FAILED + error.message + "\n", status)


# ---- pending operations ----------------------------------------------------------------------


async def list_operations(request: Request) -> Response:
    """GET /operations: the open one, then the newest ended ones."""
    operations = request.app.state.frontend.operations
    pending = operations.pending()
    return json_response(
        {
            "open": [view_json(pending)] if pending else [],
            "finished": [result_json(result) for result in operations.finished(50)],
        }
    )


async def get_operation(request: Request) -> Response:
    """GET /operations/{id}; asking does not seal the id."""
    op_id = request.path_params["op_id"]
    try:
        _, view, result = request.app.state.frontend.operations.query(op_id, seal=False)
    except ProtocolError as error:
        return operation_error(error)
    if view is not None:
        return json_response(view_json(view))
    if result is not None:
        return json_response(result_json(result))
    raise HTTPError(404, f"no operation {op_id}")


async def change_operation(request: Request) -> Response:
    """POST /operations/{id}/extend {"by_s": n} | cancel | force"""
    op_id, act = request.path_params["op_id"], request.path_params["act"]
    operations = request.app.state.frontend.operations
    try:
        if act == "extend":
            view = operations.extend(op_id, (await read_json(request, _Extend)).by_s)
        elif act == "cancel":
            view = operations.cancel(op_id)
        elif act == "force":
            view = operations.force(op_id)
        else:
            raise HTTPError(404, f"no action {act}")
    except ProtocolError as error:
        return operation_error(error)
    return json_response(view_json(view), 202)


async def repair(request: Request) -> Response:
    """POST /operations/repair: bring every living rank to the desired state."""
    await read_body(request)
    no_others(request.query_params, {"op_id"})
    options = Options(timeout=MAX_REPAIR_S, mode=Mode.WAIT, op_id=op_id_of(request))
    return await answered(request, Repair(), options, "every living rank serves what is desired")


class _Extend(msgspec.Struct, forbid_unknown_fields=True):
    by_s: float


# ---- abort -----------------------------------------------------------------------------------


class _Abort(msgspec.Struct, forbid_unknown_fields=True):
    rid: str = ""
    abort_all: bool = False
    abort_message: Annotated[str, msgspec.Meta(max_length=1024)] | None = None


async def abort_request(request: Request) -> Response:
    """POST /abort_request {"rid": id} | {"abort_all": true}: exact ids, and how many ended."""
    body = await read_json(request, _Abort)
    requests = request.app.state.frontend.requests
    message = body.abort_message or "Aborted"
    if body.abort_all:
        count = requests.abort_all(message)
    else:
        count = int(bool(body.rid) and requests.abort(body.rid, message))
    return json_response({"aborted": count})

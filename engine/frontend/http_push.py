"""Routes for weights that are pushed: uploaded as safetensors, or broadcast by a trainer; in one
call, or in parts between begin_weight_update and end_weight_update.

A bad part ends its session at once: nothing of it is served, and nothing of it is in the way.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.frontend import http_uploads, unimplemented
from engine.frontend.core import Frontend
from engine.frontend.http_errors import HTTPError, json_response
from engine.frontend.http_json import convert, parse, read_body, read_json
from engine.frontend.http_operation import answered, refusal
from engine.frontend.http_weights import UpdateOptions
from engine.frontend.streams import unless_gone
from engine.frontend.weight_sessions import LAPSE_S, Session, WeightSessions
from engine.ipc.messages import ReceiveTensors
from engine.protocol import (
    OperationKind,
    ProtocolError,
    TrainerGroup,
    UpdateWeightsFromDistributed,
    UpdateWeightsFromTensor,
)
from engine.protocol.operations import MAX_TENSORS, Name, WeightVersion

PICKLED = (
    "serialized_named_tensors is Python's pickle, which runs whatever its sender wrote into it; "
    "it is not read here: send the tensors as safetensors bytes, as application/octet-stream or as "
    "files of a multipart/form-data form"
)
_DTYPES = ["bfloat16", "float16", "float32"]
RECEIVED = "Succeeded to update parameter online."
_Owner = Annotated[str, msgspec.Meta(max_length=128)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


def _sessions(request: Request) -> WeightSessions:
    sessions: WeightSessions = request.app.state.frontend.sessions
    return sessions


# ---- sessions --------------------------------------------------------------------------------


class _Begin(msgspec.Struct, forbid_unknown_fields=True):
    selector: Literal["all", "target"] = "all"
    owner: _Owner = ""
    timeout: _Seconds = LAPSE_S


async def begin(request: Request) -> Response:
    """POST /begin_weight_update {"owner", "timeout": seconds until it lapses}"""
    body = await read_json(request, _Begin)
    try:
        session = _sessions(request).begin(body.owner, body.timeout)
    except ProtocolError as error:
        return refusal(error)
    return json_response(
        {"success": True, "message": "Success", "session": session.id, "lapses_in_s": body.timeout}
    )


class _End(UpdateOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    owner: _Owner = ""
    abort: bool = False  # drop what came instead


async def end(request: Request) -> Response:
    """POST /end_weight_update: check all that came, and serve it on every rank or on none."""
    body = await read_json(request, _End)
    sessions = _sessions(request)
    try:
        session = sessions.close(body.owner)
    except ProtocolError as error:
        return refusal(error)
    if body.abort:
        sessions.abandon(session)
        return json_response({"success": True, "message": "the session was dropped"})
    if session.num_parts == 0:
        sessions.abandon(session)
        raise HTTPError(400, "nothing was received in this session; no weight has changed")
    return await _carry_out(request, session, body)


async def _carry_out(request: Request, session: Session, body: UpdateOptions) -> Response:
    """What came is the operation's from the moment it is taken."""
    version = body.weight_version or session.weight_version
    fields = body.for_update() | {"weight_version": version}
    received = {"tensors_received": len(session.names), "bytes_received": session.bytes}
    operation: UpdateWeightsFromTensor | UpdateWeightsFromDistributed
    if session.kind is OperationKind.UPDATE_WEIGHTS_FROM_TENSOR:
        operation, done = UpdateWeightsFromTensor(upload_id=session.id, **fields), "Success"
    else:
        lists: dict[str, Any] = {"names": [], "dtypes": [], "shapes": []}
        operation = UpdateWeightsFromDistributed(session=session.id, **lists, **fields)
        done = RECEIVED
    is_taken = False

    def begun() -> None:
        nonlocal is_taken
        is_taken = True

    answer = await answered(request, operation, body.for_operation(), done, begun, **received)
    if not is_taken:
        _sessions(request).reopen(session)  # refused before anything began: end it again later
    return answer


class _Owned:
    """An upload that is dropped at the end of the block, unless an operation has taken it."""

    def __init__(self, sessions: WeightSessions, session: Session) -> None:
        self._sessions = sessions
        self._session = session
        self._is_ours = True

    def pass_on(self) -> None:
        """It is somebody else's to drop."""
        self._is_ours = False

    def __enter__(self) -> None:
        """Ours from here on."""

    def __exit__(self, *_: object) -> None:
        if self._is_ours:
            self._sessions.abandon(self._session)


# ---- uploaded tensors ------------------------------------------------------------------------


class _Tensors(UpdateOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    owner: _Owner = ""


async def update_from_tensor(request: Request) -> Response:
    """POST /update_weights_from_tensor with safetensors bytes; options in the query or the form."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "application/json":
        return await _refuse_json(request)
    frontend: Frontend = request.app.state.frontend
    sessions = _sessions(request)
    options = _options(dict(request.query_params))
    try:
        session = sessions.part_of(OperationKind.UPDATE_WEIGHTS_FROM_TENSOR, options.owner)
    except ProtocolError as error:
        return refusal(error)
    part_of = session or Session(id=f"upload-{secrets.token_hex(8)}", owner="", lapse_s=LAPSE_S)
    owned = _Owned(sessions, part_of)
    with owned:
        left = frontend.config.max_upload_bytes - part_of.bytes
        paths, fields = await http_uploads.receive(
            request, frontend.files.folder(part_of.id), part_of.num_parts, left
        )
        if fields:
            options = _options(dict(request.query_params) | fields)
        found = await asyncio.to_thread(http_uploads.entries, paths)
        _check_part(frontend, part_of, found)
        part_of.num_parts += len(paths)
        part_of.bytes += sum(path.stat().st_size for path in paths)
        if session is None:
            operation = UpdateWeightsFromTensor(upload_id=part_of.id, **options.for_update())
            run = options.for_operation()
            return await answered(request, operation, run, options.done("Success"), owned.pass_on)
        session.weight_version = options.weight_version or session.weight_version
        sessions.kept(session)
        owned.pass_on()  # the session's, until its end
        return json_response(_part_answer(session))


async def _refuse_json(request: Request) -> Response:
    document = parse(await read_body(request))
    if isinstance(document, dict) and "serialized_named_tensors" in document:
        raise HTTPError(400, PICKLED, param="serialized_named_tensors")
    raise HTTPError(400, "send safetensors bytes, not JSON; options go into the query")


def _options(given: dict[str, str]) -> _Tensors:
    """Options as text: of a query, or of a form."""
    document: dict[str, Any] = dict(given)
    for name in ("flush_cache", "torch_empty_cache", "abort_all_requests", "allow_nonfinite"):
        if name in document:
            if document[name].lower() not in ("true", "false"):
                raise HTTPError(400, f"{name} must be true or false", param=name)
            document[name] = document[name].lower() == "true"
    if "timeout" in document:
        try:
            document["timeout"] = parse(document["timeout"].encode())
        except HTTPError as error:
            raise HTTPError(400, "timeout must be a number", param="timeout") from error
    return convert(document, _Tensors, unimplemented.UPDATE_FROM_TENSOR)


def _check_part(frontend: Frontend, session: Session, found: dict[str, Any]) -> None:
    """Names and shapes, before the next part comes. Raises HTTPError."""
    facts = frontend.facts()
    known = dict(facts.tensors) if facts is not None else {}
    if not found:
        raise HTTPError(400, "the upload holds no tensor")
    for name, entry in found.items():
        if name not in known:
            raise HTTPError(400, f"tensor {name}: the model has no use for it", param=name)
        if list(entry.shape) != known[name]:
            raise HTTPError(
                400,
                f"tensor {name}: shape {entry.shape}, expected {tuple(known[name])}",
                param=name,
            )
        if name in session.names:
            raise HTTPError(400, f"tensor {name} is sent twice", param=name)
    session.names |= found.keys()


def _part_answer(session: Session) -> dict[str, Any]:
    return {
        "success": True,
        "message": "Success",
        "session": session.id,
        "tensors_received": len(session.names),
        "bytes_received": session.bytes,
    }


# ---- a trainer's group -----------------------------------------------------------------------


class _InitGroup(TrainerGroup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    timeout: _Seconds = 60.0


class _DestroyGroup(msgspec.Struct, forbid_unknown_fields=True):
    group_name: Name = "weight_update_group"


async def init_group(request: Request) -> Response:
    """POST /init_weights_update_group: DP rank r joins as rank_offset + r, all of them or none."""
    body = await read_json(request, _InitGroup)
    frontend: Frontend = request.app.state.frontend
    fields = {name: getattr(body, name) for name in TrainerGroup.__struct_fields__}
    group = TrainerGroup(**fields)
    if group.backend == "nccl" and frontend.config.device == "cpu":
        raise HTTPError(
            400, "backend nccl needs CUDA; this engine computes on a CPU: use gloo", param="backend"
        )
    joining = _sessions(request).join(group, frontend.config.dp_size, body.timeout)
    why = await unless_gone(request, joining)
    if why is None:
        return Response(status_code=499)  # nobody will use the group: it is left again
    done = "Succeeded to initialize custom process group."
    return json_response({"success": not why, "message": why or done}, 400 if why else 200)


async def destroy_group(request: Request) -> Response:
    """POST /destroy_weights_update_group"""
    body = await read_json(request, _DestroyGroup)
    known = await _sessions(request).leave(body.group_name)
    message = "Succeeded to destroy custom process group."
    if not known:
        message = f"no group {body.group_name!r}; init it first"
    return json_response({"success": known, "message": message}, 200 if known else 400)


class _Distributed(UpdateOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    names: Annotated[list[Name], msgspec.Meta(max_length=MAX_TENSORS)]
    dtypes: Annotated[list[Name], msgspec.Meta(max_length=MAX_TENSORS)]
    shapes: Annotated[list[list[int]], msgspec.Meta(max_length=MAX_TENSORS)]
    group_name: Name = "weight_update_group"
    load_format: Literal["flattened_bucket"] | None = None
    weight_version: WeightVersion | None = None
    receive_timeout: _Seconds = 120.0
    owner: _Owner = ""


async def update_from_distributed(request: Request) -> Response:
    """POST /update_weights_from_distributed: receive these tensors of the group's rank 0."""
    body = await read_json(request, _Distributed, unimplemented.UPDATE_FROM_DISTRIBUTED)
    frontend: Frontend = request.app.state.frontend
    sessions = _sessions(request)
    try:
        kind = OperationKind.UPDATE_WEIGHTS_FROM_DISTRIBUTED
        session = sessions.part_of(kind, body.owner)
    except ProtocolError as error:
        return refusal(error)
    try:
        if not sessions.has_group(body.group_name):
            raise HTTPError(400, f"no group {body.group_name!r}; init it first", param="group_name")
        _check_lists(frontend, body, session)
    except BaseException:
        if session is not None:
            sessions.abandon(session)
        raise
    if session is not None:
        return await _receive_part(request, session, body)
    operation = UpdateWeightsFromDistributed(
        names=body.names,
        dtypes=body.dtypes,
        shapes=body.shapes,
        load_format=body.load_format,
        group_name=body.group_name,
        session=f"call-{secrets.token_hex(8)}",
        receive_timeout_s=body.receive_timeout,
        **body.for_update(),
    )
    return await answered(request, operation, body.for_operation(), body.done(RECEIVED))


async def _receive_part(request: Request, session: Session, body: _Distributed) -> Response:
    frontend: Frontend = request.app.state.frontend
    question = ReceiveTensors(
        session=session.id,
        group_name=body.group_name,
        names=body.names,
        dtypes=body.dtypes,
        shapes=body.shapes,
        load_format=body.load_format,
    )
    session.weight_version = body.weight_version or session.weight_version
    why = await _sessions(request).receive(
        session, question, frontend.config.dp_size, body.receive_timeout
    )
    if why:
        return json_response({"success": False, "message": why}, 400)
    return json_response(_part_answer(session) | {"message": RECEIVED})


def _check_lists(frontend: Frontend, body: _Distributed, session: Session | None) -> None:
    """What can be known before anything is waited for. Raises HTTPError."""
    count = len(body.names)
    if not count or count != len(body.dtypes) or count != len(body.shapes):
        raise HTTPError(
            400,
            f"{count} names, {len(body.dtypes)} dtypes and {len(body.shapes)} shapes do not belong "
            "together",
            param="names",
        )
    for dtype in body.dtypes:
        if dtype.removeprefix("torch.") not in _DTYPES:
            raise HTTPError(400, f"dtype {dtype!r} is not one of {_DTYPES}", param="dtypes")
    facts = frontend.facts()
    known = dict(facts.tensors) if facts is not None else {}
    seen: set[str] = set(session.names) if session is not None else set()
    for name, shape in zip(body.names, body.shapes, strict=True):
        if name not in known:
            raise HTTPError(400, f"tensor {name}: the model has no use for it", param="names")
        if shape != known[name]:
            raise HTTPError(
                400, f"tensor {name}: shape {shape}, expected {known[name]}", param="shapes"
            )
        if name in seen:
            raise HTTPError(400, f"tensor {name} is sent twice", param="names")
        seen.add(name)
    if session is None and len(seen) < len(known):
        missing = next(name for name in known if name not in seen)
        raise HTTPError(
            400,
            f"tensor {missing} is missing: send all tensors in one call, or parts of them between "
            "begin_weight_update and end_weight_update",
            param="names",
        )

"""Routes of the storage backend: SGLang's fields, texts and status codes, and what it does not say.

Every reply of a change is about all ranks; with `Accept: application/json` it lists each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from engine.config import EngineConfig
from engine.frontend.core import Frontend
from engine.frontend.http_errors import HTTPError, json_response
from engine.frontend.http_json import read_json
from engine.frontend.http_operation import (
    STATUS,
    Options,
    operation_error,
    options_of,
    result_json,
    run,
    wants_json,
)
from engine.frontend.outcomes import NOT_IDLE
from engine.frontend.query import flag
from engine.protocol import (
    AttachStorage,
    ClearStorage,
    DetachStorage,
    Operation,
    OperationResult,
    Outcome,
    PrefetchPolicy,
    ProtocolError,
    RankStorage,
    RankView,
    StorageBackend,
    WritePolicy,
)
from engine.protocol.storage import ConfigText

NO_ADMIN_KEY = (
    "This endpoint requires admin API key, but this server was started without one "
    "(admin-api-key). Restart with --admin-api-key to enable."
)
ATTACHED = "HiCache storage backend attached.\n"
NOT_ATTACHED = "Failed to attach HiCache storage backend.\n"
DETACHED = "HiCache storage backend detached.\n"
NOT_DETACHED = "Failed to detach HiCache storage backend.\n"
CLEARED = "Hierarchical cache storage backend cleared.\n"
NOT_CLEARED = "Failed to clear the storage backend.\n"
ATTACH_DONE = "Attached HiCache storage backend successfully.\n"
ATTACH_SAME = "HiCache storage backend already enabled with same backend; policies updated.\n"
DETACH_DONE = "Detached HiCache storage backend successfully.\n"


class _Attach(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    hicache_storage_backend: StorageBackend
    hicache_storage_backend_extra_config_json: ConfigText | None = None
    hicache_storage_prefetch_policy: PrefetchPolicy | None = None
    hicache_write_policy: WritePolicy | None = None
    rank_configs: dict[str, dict[str, Any]] = {}  # DP rank → settings laid over the config
    replace: bool = False


def _refuse_without_key(config: EngineConfig) -> Response | None:
    """These routes are never open: a store is another machine's, and its settings hold secrets."""
    return None if config.admin_api_key else json_response({"error": NO_ADMIN_KEY}, 400)


# ---- PUT -------------------------------------------------------------------------------------


async def attach(request: Request) -> Response:
    """PUT /hicache/storage-backend"""
    frontend: Frontend = request.app.state.frontend
    refused = _refuse_without_key(frontend.config)
    if refused is not None:
        return refused
    body = await read_json(request, _Attach)
    operation = AttachStorage(
        backend=body.hicache_storage_backend,
        config=body.hicache_storage_backend_extra_config_json or "",
        rank_configs={
            rank: msgspec.json.encode(own).decode() for rank, own in body.rank_configs.items()
        },
        prefetch_policy=body.hicache_storage_prefetch_policy,
        write_policy=body.hicache_write_policy,
        replace=body.replace,
    )

    def done(result: OperationResult) -> str:
        return ATTACH_SAME if result.storage_before == result.storage else ATTACH_DONE

    return await _answered(request, operation, body, (ATTACHED, NOT_ATTACHED, "attach"), done)


# ---- DELETE, clear ---------------------------------------------------------------------------


async def detach(request: Request) -> Response:
    """DELETE /hicache/storage-backend?timeout=&mode=&force=&op_id="""
    refused = _refuse_without_key(request.app.state.frontend.config)
    if refused is not None:
        return refused
    options = options_of(request, {"force"})
    operation = DetachStorage(force=flag(request.query_params, "force", default=False))
    texts = (DETACHED, NOT_DETACHED, "detach")
    return await _answered(request, operation, options, texts, lambda _: DETACH_DONE)


async def clear(request: Request) -> Response:
    """POST /hicache/storage-backend/clear?timeout=&mode=&op_id="""
    refused = _refuse_without_key(request.app.state.frontend.config)
    if refused is not None:
        return refused
    texts = (CLEARED, NOT_CLEARED, "clear")
    return await _answered(request, ClearStorage(), options_of(request), texts, lambda _: "")


# ---- replies ---------------------------------------------------------------------------------


async def _answered(
    request: Request,
    operation: Operation,
    options: Options,
    texts: tuple[str, str, str],
    done: Callable[[OperationResult], str],
) -> Response:
    good, bad, verb = texts
    try:
        result = await run(request, operation, options)
    except ProtocolError as error:
        if wants_json(request):
            return operation_error(error)
        return PlainTextResponse(f"{bad}{error.message}\n", STATUS.get(error.code, 503))
    if result is None:
        return Response(status_code=499)  # nobody is left to read it
    ok = result.outcome is Outcome.SUCCEEDED
    if wants_json(request):
        return json_response(result_json(result), 200 if ok else 400)
    text = good + done(result) if ok else bad + _why(result, verb)
    return PlainTextResponse(text, 200 if ok else 400)


def _why(result: OperationResult, verb: str) -> str:
    """SGLang's line for a busy engine, then which places are busy on which rank."""
    busy = [r.places for r in result.ranks if r.places is not None and not r.places.is_idle]
    is_why = result.outcome is Outcome.EXPIRED or any(
        rank.message.startswith(NOT_IDLE) for rank in result.ranks
    )
    line = ""
    if busy and is_why:
        waiting = sum(places.waiting for places in busy)
        running = sum(places.running + places.chunked_prefill for places in busy)
        line = (
            f"Reject {verb}: scheduler is not idle. #queue-req={waiting} #running-req={running}\n"
        )
    return f"{line}{result.message}\n"


# ---- GET -------------------------------------------------------------------------------------


async def status(request: Request) -> Response:
    """GET /hicache/storage-backend: what is desired, and what each rank says it has."""
    frontend: Frontend = request.app.state.frontend
    refused = _refuse_without_key(frontend.config)
    if refused is not None:
        return refused
    desired = frontend.journal.index.desired
    view, policies = desired.storage_backend, desired.policies
    ranks = [_rank(rank, view is not None) for rank in frontend.state().ranks]
    return json_response(
        {
            "hicache_storage_backend": view.backend if view else None,
            "hicache_storage_backend_extra_config": (view.config or None) if view else None,
            "hicache_storage_prefetch_policy": policies.prefetch_policy,
            "hicache_write_policy": policies.write_policy,
            "rank_configs": view.rank_configs if view else {},
            "config_id": view.config_id if view else None,
            "drift": any(rank["drift"] for rank in ranks),
            "ranks": ranks,
        }
    )


def _rank(rank: RankView, is_desired: bool) -> dict[str, Any]:  # Any: JSON
    """One rank's own word. Its newest counters may be half a second older than its state."""
    storage = rank.storage
    attached = rank.storage_backend is not None and (storage is None or storage.is_open)
    drifts = attached != is_desired or (storage is not None and storage.drifts)
    return {
        "dp_rank": rank.dp_rank,
        "incarnation": rank.incarnation,
        "online": rank.online,
        "proven": rank.proven,
        "attached": attached,
        "hicache_storage_backend": rank.storage_backend if attached else None,
        "config_hash": storage.config_hash if storage else None,
        "drift": rank.online and drifts,
        "health": storage.breaker if storage else None,
        **(_numbers(storage) if storage is not None else {}),
    }


def _numbers(storage: RankStorage) -> dict[str, Any]:  # Any: JSON
    """What operators look for first, by short names, and everything."""
    return {
        "hits": storage.hit_pages,
        "misses": storage.miss_pages,
        "bytes_read": storage.read_bytes,
        "bytes_written": storage.written_bytes,
        "errors": storage.errors,
        "last_error": storage.last_error,
        "storage": msgspec.to_builtins(storage),
    }


async def layout(request: Request) -> Response:
    """GET /get_hicache_l3_cache_layout: SGLang answers for Mooncake only; here for any backend."""
    frontend: Frontend = request.app.state.frontend
    view = frontend.journal.index.desired.storage_backend
    config = frontend.config
    body: dict[str, Any] = {
        "enabled": view is not None,
        "backend": view.backend if view else None,
        "page_size": config.page_size,
        "hicache_object_layout": {"pools": [{"name": "kv", "layout": config.host_layout}]},
        "reason": "" if view else "no storage backend is attached",
    }
    if not config.hierarchical:
        raise HTTPError(400, "Hierarchical cache is not enabled.")
    return json_response(body)

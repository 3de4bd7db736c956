"""Read-only routes: health, models, server, loads, metrics. No secret in any of them.

All are answered from the newest reports, so they are true while ranks are busy, parked or gone.
"""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from engine.frontend.completion import Completion
from engine.frontend.core import VERSION, Frontend
from engine.frontend.http_errors import HTTPError, json_response
from engine.frontend.metrics import exposition
from engine.frontend.query import is_natural, no_others
from engine.frontend.requests import NewRequest, QueueFullError
from engine.frontend.streams import unless_gone
from engine.ipc.sampling import SamplingParams
from engine.protocol import RankView

_SECTIONS = ("core", "memory", "spec", "lora", "disagg", "queues", "all")
_STARTED = int(time.time())


def _frontend(request: Request) -> Frontend:
    frontend: Frontend = request.app.state.frontend
    return frontend


async def health(request: Request) -> Response:
    """200 while some rank can serve; needs no free slot and generates nothing."""
    return Response(status_code=200 if _frontend(request).is_serving else 503)


async def ready(request: Request) -> Response:
    """200 when a request sent now would be served at once: some rank is proven and open."""
    frontend = _frontend(request)
    is_open = not frontend.coordinator.is_holding and bool(frontend.routable())
    return Response(status_code=200 if is_open else 503)


async def ping(request: Request) -> Response:
    """200 while this process answers."""
    return Response(status_code=200)


async def health_generate(request: Request) -> Response:
    """200 when a rank generates one token; waits behind a pending operation as a request would."""
    frontend = _frontend(request)
    if not frontend.is_serving:
        return Response(status_code=503)
    new = NewRequest(
        rid=f"HEALTH_CHECK_{uuid.uuid4().hex}",
        input_ids=[0],
        sampling=SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True),
    )

    async def one_token() -> int:
        completion = Completion(frontend.requests, request.app.state.tokenizer, new)
        async for piece in completion.pieces():
            if piece.finish is not None and piece.finish.type == "abort":
                return 503
        return 200

    try:
        status = await unless_gone(request, one_token())
    except QueueFullError:
        status = 503
    return Response(status_code=status or 499)


async def models(request: Request) -> Response:
    """GET /v1/models"""
    return json_response({"object": "list", "data": [_model(_frontend(request))]})


async def model(request: Request) -> Response:
    """GET /v1/models/{id}"""
    frontend = _frontend(request)
    name = request.path_params["model_id"]
    if name != frontend.config.model_name:
        return json_response(
            {
                "error": {
                    "message": f"The model '{name}' does not exist",
                    "type": "invalid_request_error",
                    "param": "model",
                    "code": "model_not_found",
                }
            },
            404,
        )
    return json_response(_model(frontend))


def _model(frontend: Frontend) -> dict[str, Any]:
    facts = frontend.facts()
    return {
        "id": frontend.config.model_name,
        "object": "model",
        "created": _STARTED,
        "owned_by": "quiesce",
        "root": frontend.config.model_name,
        "parent": None,
        "max_model_len": facts.context_len_tokens if facts else None,
    }


async def model_info(request: Request) -> Response:
    """GET /model_info: what is served, and which weights the journal wants on every rank."""
    frontend = _frontend(request)
    config = frontend.config
    document = msgspec.json.decode((Path(config.model_path) / "config.json").read_bytes())
    return json_response(
        {
            "model_path": config.model_name,
            "served_model_name": config.model_name,
            "tokenizer_path": config.model_name,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": frontend.journal.index.desired.weights.version,
            "weights": msgspec.to_builtins(frontend.journal.index.desired.weights),
            "load_format": "safetensors",
            "reasoning_parser": None,
            "tool_call_parser": None,
            "disaggregation_mode": "null",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": document.get("model_type"),
            "architectures": document.get("architectures"),
        }
    )


async def server_info(request: Request) -> Response:
    """GET /server_info: settings by name from an allow-list, so that no secret can slip in."""
    frontend = _frontend(request)
    config, facts = frontend.config, frontend.facts()
    ranks = frontend.state().ranks
    desired = frontend.journal.index.desired
    return json_response(
        {
            "version": VERSION,
            "frontend": "python",
            "model_path": config.model_name,
            "served_model_name": config.model_name,
            "dp_size": config.dp_size,
            "device": config.device,
            "dtype": config.dtype,
            "page_size": config.page_size,
            "chunked_prefill_size": config.chunked_prefill_tokens,
            "max_running_requests": config.max_running_requests,
            "max_queued_requests": config.max_queued_requests,
            "context_length": facts.context_len_tokens if facts else None,
            "max_total_num_tokens": facts.num_pages * facts.page_size_tokens if facts else None,
            "weight_version": frontend.journal.index.desired.weights.version,
            "paused": desired.paused,
            "released": list(desired.released),
            "needs_weights": desired.needs_weights,
            "weights_roots": list(config.weights_roots),
            "enable_hierarchical_cache": config.hierarchical,
            "hicache_ratio": config.hicache_ratio,
            "hicache_mem_layout": config.host_layout,
            "hicache_write_policy": desired.policies.write_policy,
            "hicache_storage_prefetch_policy": desired.policies.prefetch_policy,
            "hicache_storage_backend": (
                desired.storage_backend.backend if desired.storage_backend else None
            ),
            "storage_roots": [Path(root).name for root in config.storage_roots],
            "storage_endpoints": list(config.storage_endpoints),
            "status": "ready" if frontend.is_serving else "starting",
            "uptime_s": time.time() - _STARTED,
            "epoch": frontend.epoch.text,
            "internal_states": [
                {
                    "dp_rank": rank.dp_rank,
                    "online": rank.online,
                    "weight_version": rank.weight_version,
                    "weight_checksum": rank.weight_checksum,
                    "condition": rank.condition,
                    "note": rank.note,
                    "last_gen_throughput": rank.decode_tokens_per_s,
                    "kv": msgspec.to_builtins(rank.kv),
                    "host": msgspec.to_builtins(rank.host),
                }
                for rank in ranks
            ],
        }
    )


async def loads(request: Request) -> Response:
    """GET /v1/loads?dp_rank=&include=&format="""
    frontend, query = _frontend(request), request.query_params
    no_others(query, {"dp_rank", "include", "format"})
    sections = (query.get("include") or "all").split(",")
    for section in sections:
        if section not in _SECTIONS:
            raise HTTPError(
                400, f"include takes {', '.join(_SECTIONS)}, not {section!r}", param="include"
            )
    form = query.get("format", "json")
    if form not in ("json", "prometheus"):
        raise HTTPError(400, f"format is json or prometheus, not {form!r}", param="format")
    wanted = _wanted_rank(query.get("dp_rank"), frontend.config.dp_size)
    if form == "prometheus":
        return PlainTextResponse(exposition(frontend))
    ranks = [r for r in frontend.state().ranks if wanted is None or r.dp_rank == wanted]
    now = datetime.now(UTC)
    return json_response(
        {
            "timestamp": now.isoformat(),
            "version": VERSION,
            "accelerator": None,
            "num_accelerators": frontend.config.dp_size,
            "loads": [_load(frontend, rank, sections, now.timestamp()) for rank in ranks],
        }
    )


def _wanted_rank(text: str | None, dp_size: int) -> int | None:
    if text is None:
        return None
    if not (is_natural(text) and int(text) < dp_size):
        raise HTTPError(
            400, f"dp_rank must be in [0, {dp_size}), got {text[:40]!r}", param="dp_rank"
        )
    return int(text)


def _load(frontend: Frontend, rank: RankView, sections: list[str], now: float) -> dict[str, Any]:
    kv, stats = rank.kv, frontend.stats.get(rank.dp_rank)
    page = kv.page_size_tokens if kv else 0
    total = kv.total_pages * page if kv else 0
    used = kv.used_pages * page if kv else 0
    body: dict[str, Any] = {
        "timestamp": now - rank.age_s,
        "dp_rank": rank.dp_rank,
        "online": rank.online,
        "ready": rank.proven,
        "num_running_reqs": rank.running,
        "num_waiting_reqs": rank.waiting,
        "num_waiting_uncached_tokens": stats.waiting_uncached_tokens if stats else 0,
        "num_used_tokens": used,
        "num_total_tokens": used + (stats.waiting_uncached_tokens if stats else 0),
        "num_active_tokens": used,
        "max_total_num_tokens": total,
        "max_running_requests": frontend.config.max_running_requests,
        "token_usage": used / total if total else 0.0,
        "gen_throughput": rank.decode_tokens_per_s,
        "cache_hit_rate": rank.hit_rate or 0.0,
        "utilization": rank.running / frontend.config.max_running_requests,
    }
    if {"memory", "all"} & set(sections):
        body["memory"] = {"token_capacity": total, "kv": msgspec.to_builtins(kv)}
    if {"queues", "all"} & set(sections):
        body["queues"] = {
            "waiting": rank.waiting,
            "grammar": rank.places.grammar,
            "held": frontend.requests.num_held,
            "retracted": stats.retractions_total if stats else 0,
        }
    return body


async def metrics(request: Request) -> Response:
    """GET /metrics, Prometheus text."""
    return PlainTextResponse(
        exposition(_frontend(request)), media_type="text/plain; version=0.0.4; charset=utf-8"
    )

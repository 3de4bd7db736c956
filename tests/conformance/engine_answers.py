"""What the engine answers, as JSON schemas: by hand, from docs/engine-http.md; and the results of
operations from the structs that they are made of."""

from __future__ import annotations

from typing import Any  # a JSON schema

import msgspec

from engine.protocol import KVUsage, OperationResult, OperationView, WeightsView

Schema = dict[str, Any]
JSON, TEXT, EVENTS = "application/json", "text/plain", "text/event-stream"
REF = "#/components/schemas/{name}"


def record(*optional: str, **required: Schema) -> Schema:
    """An object with these members, and maybe others."""
    members = {**required, **{name: {} for name in optional}}
    return {"type": "object", "properties": members, "required": list(required)}


def ref(name: str) -> Schema:
    return {"$ref": REF.format(name=name)}


def some(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


STRING, NUMBER, INTEGER, FLAG = ({"type": t} for t in ("string", "number", "integer", "boolean"))
NULL = {"type": "null"}
OBJECT = {"type": "object"}


def many(item: Schema) -> Schema:
    return {"type": "array", "items": item}


_OPENAI_ERROR = {
    "object": {"const": "error"},
    "message": STRING,
    "type": {"enum": ["BadRequestError", "NotFoundError", "InternalServerError",
                      "ServiceUnavailableError", "invalid_request_error"]},
    "param": some(STRING, NULL),
    "code": INTEGER,
}  # fmt: skip
_USAGE = record(
    prompt_tokens=INTEGER, completion_tokens=INTEGER, total_tokens=INTEGER,
    prompt_tokens_details=record(cached_tokens=INTEGER),
)  # fmt: skip
_CHOICE = record(
    "text", "message", "logprobs", "matched_stop",
    index=INTEGER, finish_reason={"enum": ["stop", "length", "abort"]},
)  # fmt: skip
_SPANS = many(record(version=STRING, start=INTEGER, end=INTEGER))
_META = record(
    id=STRING, finish_reason=record(type={"enum": ["stop", "length", "abort"]}),
    prompt_tokens=INTEGER, completion_tokens=INTEGER, cached_tokens=INTEGER, weight_version=STRING,
    weight_versions=_SPANS, dp_rank=some(INTEGER, NULL), num_retractions=INTEGER,
    e2e_latency=NUMBER,
)  # fmt: skip
_KV = some(ref("KVUsage"), NULL)
_LOAD = record(
    "memory", "queues",
    timestamp=NUMBER, dp_rank=INTEGER, online=FLAG, ready=FLAG, num_running_reqs=INTEGER,
    num_waiting_reqs=INTEGER, num_used_tokens=INTEGER, max_total_num_tokens=INTEGER,
    token_usage={"type": "number", "minimum": 0, "maximum": 1}, gen_throughput=NUMBER,
    cache_hit_rate=NUMBER, utilization=NUMBER,
)  # fmt: skip
_MODEL = record(
    id=STRING, object={"const": "model"}, created=INTEGER, owned_by=STRING,
    max_model_len=some(INTEGER, NULL),
)  # fmt: skip
_RANK_STORAGE = record(
    "storage", "hits", "misses", "bytes_read", "bytes_written", "errors", "last_error",
    dp_rank=INTEGER, incarnation=INTEGER, online=FLAG, proven=FLAG, attached=FLAG,
    hicache_storage_backend=some(STRING, NULL), config_hash=some(STRING, NULL), drift=FLAG,
    health={"enum": ["closed", "open", "half_open", "stalled", None]},
)  # fmt: skip

BY_HAND: dict[str, Schema] = {
    "Error": some(
        record(error=record("param", message=STRING), **_OPENAI_ERROR),
        record(error=STRING),
    ),
    "OpenAIError": some(
        record(**_OPENAI_ERROR),
        record(error=record(message=STRING, type=STRING, param=some(STRING, NULL), code=STRING)),
        record(error=STRING),
    ),
    "Refusal": record(
        "success", "message", error=record("holder", "remaining_s", message=STRING, code=STRING)
    ),
    "Said": record(success=FLAG, message=STRING),
    "Generated": record("prompt_token_ids", text=STRING, output_ids=many(INTEGER), meta_info=_META),
    "Completion": record(
        id=STRING, object={"enum": ["text_completion", "chat.completion"]}, created=INTEGER,
        model=STRING, choices={**many(_CHOICE), "minItems": 1}, usage=_USAGE,
        metadata=record(weight_version=STRING, weight_versions=_SPANS,
                        dp_rank=some(INTEGER, NULL)),
    ),
    "Scores": record(
        scores=many(many({"type": "number", "minimum": 0, "maximum": 1.000001})), model=STRING,
        usage=_USAGE, object={"const": "scoring"}, metadata=record(weight_versions=many(STRING)),
    ),
    "Event": record(data=STRING),
    "Model": _MODEL,
    "Models": record(object={"const": "list"}, data=many(_MODEL)),
    "Loads": record(timestamp=STRING, version=STRING, num_accelerators=INTEGER, loads=many(_LOAD)),
    "ModelInfo": record(
        model_path=STRING, served_model_name=STRING, is_generation=FLAG, weight_version=STRING,
        weights=ref("WeightsView"), model_type=some(STRING, NULL), architectures=many(STRING),
    ),
    "ServerInfo": record(
        version=STRING, dp_size=INTEGER, device=STRING, dtype=STRING, page_size=INTEGER,
        weight_version=STRING, paused=some(STRING, NULL), released=many(STRING),
        needs_weights=FLAG, status={"enum": ["ready", "starting"]}, uptime_s=NUMBER, epoch=STRING,
        internal_states=many(record(dp_rank=INTEGER, online=FLAG, condition=STRING, kv=_KV)),
    ),
    "Aborted": record(aborted=INTEGER),
    "Operations": record(open=many(ref("OperationView")), finished=many(ref("OperationResult"))),
    "Tensor": {"type": "array"},
    "Checked": record(
        success=FLAG, message=STRING, weight_version=STRING, desired_checksum=STRING,
        per_engine_checksum=STRING,
        ranks=many(record(dp_rank=INTEGER, checksums=OBJECT, per_gpu_checksum=STRING)),
    ),
    "Session": record(success=FLAG, message=STRING),
    "Storage": record(
        hicache_storage_backend=some(STRING, NULL), rank_configs=OBJECT, drift=FLAG,
        hicache_storage_backend_extra_config=some(STRING, NULL), config_id=some(STRING, NULL),
        hicache_storage_prefetch_policy=STRING, hicache_write_policy=STRING,
        ranks=many(_RANK_STORAGE),
    ),
    "Layout": record(enabled=FLAG, backend=some(STRING, NULL), page_size=INTEGER, reason=STRING,
                     hicache_object_layout=record(pools=many(OBJECT))),
}  # fmt: skip


def components() -> dict[str, Schema]:
    """All of them by name."""
    structs = [OperationResult, OperationView, WeightsView, KVUsage]
    _, made = msgspec.json.schema_components(structs, ref_template=REF)
    for name in ("OperationResult", "OperationView"):
        made[name].pop("additionalProperties", None)  # a reply has more beside them
    made["OperationResult"]["required"].append("success")
    return {**made, **BY_HAND}

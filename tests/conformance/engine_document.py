"""An OpenAPI document of the engine's HTTP surface, which serves none: by hand, from
docs/engine-http.md.

Two tags: *serving* leaves the engine as it is, *changing* may pause it or take its weights.
"""

from __future__ import annotations

from typing import Any

from engine.frontend.http_auth import Access
from engine.frontend.http_server import ROUTES
from engine.protocol import MAX_TIMEOUT_S, Mode
from tests.conformance.engine_answers import (
    EVENTS,
    FLAG,
    INTEGER,
    JSON,
    OBJECT,
    STRING,
    TEXT,
    Schema,
    components,
    many,
    ref,
    some,
)
from tests.conformance.engine_bodies import BODIES, bodies

# Not generated: it starts processes that wait for a trainer. tests/engine/process/test_trainer.py.
LEFT_OUT = {"/init_weights_update_group"}
SERVING, CHANGING = "serving", "changing"


def _content(*schemas: str, text: bool = False) -> Schema:
    """JSON of one of these shapes, or plain text."""
    found = {JSON: {"schema": some(*map(ref, schemas))}} if schemas else {}
    return {"content": found | ({TEXT: {"schema": STRING}} if text else {})}


def _statuses(*statuses: int) -> dict[int, Schema]:
    """Nothing in the body."""
    return {status: {} for status in statuses}


_REFUSED = {400: _content("Error"), 408: _content("Error"), 413: _content("Error")}
_OPENAI = dict.fromkeys((400, 408, 413, 503), _content("OpenAIError"))
_OPERATION = {
    200: _content("OperationResult"),
    400: _content("OperationResult", "Refusal", "Error", "Said"),
    **dict.fromkeys((404, 409, 503), _content("Refusal")),
    **dict.fromkeys((408, 413), _content("Error")),
}
_TOLD = {  # text by default, JSON when asked
    200: _content("OperationResult", text=True),
    400: _content("OperationResult", "Error", "Refusal", text=True),
    **dict.fromkeys((404, 409, 503), _content("Refusal", text=True)),
    **dict.fromkeys((408, 413), _content("Error")),
}
_SAID = {200: _content("Said"), **_REFUSED, 409: _content("Refusal"), 503: _content("Refusal")}
_ONE_OPERATION = {
    200: _content("OperationView", "OperationResult"),
    202: _content("OperationView"),
    400: _content("Error", "Refusal"),
    **dict.fromkeys((404, 409, 503), _content("Error", "Refusal")),
}
_UPLOADED = {415: _content("Error"), 507: _content("Error")}


def _streamed(name: str) -> Schema:
    """One answer, a list of them, or events."""
    whole = some(ref(name), many(ref(name)))
    return {"content": {JSON: {"schema": whole}, EVENTS: {"schema": ref("Event")}}}


_ANSWERS: dict[str, dict[int, Schema]] = {
    "/health": _statuses(200, 503),
    "/health_generate": _statuses(200, 503),
    "/ready": _statuses(200, 503),
    "/ping": _statuses(200),
    "/metrics": {200: _content(text=True)},
    "/generate": {200: _streamed("Generated"), **_REFUSED, 503: _content("Error")},
    "/v1/completions": {200: _streamed("Completion"), **_OPENAI},
    "/v1/chat/completions": {200: _streamed("Completion"), **_OPENAI},
    "/v1/score": {200: _content("Scores"), **_OPENAI},
    "/v1/models": {200: _content("Models")},
    "/v1/models/{model_id}": {200: _content("Model"), 404: _content("OpenAIError")},
    "/v1/loads": {200: _content("Loads", text=True), 400: _content("OpenAIError")},
    "/model_info": {200: _content("ModelInfo")},
    "/get_model_info": {200: _content("ModelInfo")},
    "/server_info": {200: _content("ServerInfo")},
    "/get_server_info": {200: _content("ServerInfo")},
    "/flush_cache": _TOLD,
    "/abort_request": {200: _content("Aborted"), **_REFUSED},
    "/update_weights_from_disk": _OPERATION,
    "/update_weights_from_tensor": {
        **_OPERATION, **_UPLOADED, 200: _content("OperationResult", "Session"),
    },
    "/update_weights_from_distributed": {
        **_OPERATION, 200: _content("OperationResult", "Session"),
    },
    "/destroy_weights_update_group": {
        **_SAID, 400: _content("Said", "Error"),
    },
    "/begin_weight_update": {**_SAID, 400: _content("Refusal", "Error")},
    "/end_weight_update": {**_OPERATION, 200: _content("OperationResult", "Said")},
    "/update_weight_version": _OPERATION,
    "/get_weights_by_name": {200: _content("Tensor"), **_REFUSED, 503: _content("Error")},
    "/weights_checker": {200: _content("Checked"), **_REFUSED, 400: _content("Checked", "Error")},
    "/pause_generation": _OPERATION,
    "/continue_generation": _OPERATION,
    "/release_memory_occupation": _OPERATION,
    "/resume_memory_occupation": _OPERATION,
    "/hicache/storage-backend": {**_TOLD, 200: _content("OperationResult", "Storage", text=True)},
    "/hicache/storage-backend/clear": _TOLD,
    "/get_hicache_l3_cache_layout": {200: _content("Layout"), **_REFUSED},
    "/operations/repair": _OPERATION,
    "/operations": {200: _content("Operations")},
    "/operations/{op_id}": _ONE_OPERATION,
    "/operations/{op_id}/{act}": _ONE_OPERATION,
}  # fmt: skip
_CHANGING = (
    "/update_weight", "/begin", "/end", "/destroy", "/pause", "/continue", "/release", "/resume",
    "/hicache/storage-backend", "/operations/repair",
)  # fmt: skip


def _parameter(where: str, name: str, schema: Schema) -> Schema:
    return {"in": where, "name": name, "schema": schema, "required": where == "path"}


_ID = {"type": "string", "pattern": "^[0-9A-Za-z_.:-]{1,64}$"}
_OPTIONS = {
    "timeout": {"type": "number", "minimum": 0, "maximum": MAX_TIMEOUT_S},
    "mode": {"enum": [str(mode) for mode in Mode]},
    "op_id": _ID,
}
_TENSOR_FLAGS = ("flush_cache", "torch_empty_cache", "abort_all_requests", "allow_nonfinite")
_SECTION = "(core|memory|spec|lora|disagg|queues|all)"
_QUERIES: dict[str, dict[str, Schema]] = {
    "/flush_cache": {**_OPTIONS, "empty_cache": FLAG},
    "/v1/loads": {
        "dp_rank": {**INTEGER, "minimum": 0, "maximum": 1},
        "include": {**STRING, "pattern": f"^({_SECTION}(,{_SECTION})*)?$"},
        "format": {"enum": ["json", "prometheus"]},
    },
    "DELETE /hicache/storage-backend": {**_OPTIONS, "force": FLAG},
    "/hicache/storage-backend/clear": _OPTIONS,
    "/operations/repair": {"op_id": _ID, "timeout": {**_OPTIONS["timeout"], "maximum": 600}},
    "/update_weights_from_tensor": {
        **_OPTIONS, **dict.fromkeys(_TENSOR_FLAGS, FLAG),
        "weight_version": {**STRING, "minLength": 1, "maxLength": 128, "pattern": "^[ -~]+$"},
    },
}  # fmt: skip


def _operation(method: str, path: str, access: Access) -> Schema:
    """One route with one of its methods."""
    queries = _QUERIES.get(f"{method} {path}", _QUERIES.get(path, {}))
    names = {"model_id": STRING, "op_id": STRING, "act": {"enum": ["extend", "cancel", "force"]}}
    answers = dict(_ANSWERS[path]) | ({} if access is Access.OPEN else {401: _content("Error")})
    is_changing = path.startswith(_CHANGING) and method != "GET"
    made: Schema = {
        "operationId": f"{method} {path}",
        "tags": [CHANGING if is_changing else SERVING],
        "parameters": [
            *(_parameter("path", name, names[name]) for name in names if f"{{{name}}}" in path),
            *(_parameter("query", name, schema) for name, schema in queries.items()),
        ],
        "responses": {str(status): {"description": "", **one} for status, one in answers.items()},
        "security": [] if access is Access.OPEN else [{"key": []}],
    }
    is_read = path in ("/get_weights_by_name", "/weights_checker")
    if path in BODIES and (method in ("POST", "PUT") or is_read):
        body = {JSON: {"schema": ref(BODIES[path].__name__)}}
        made["requestBody"] = {"content": body, "required": path != "/weights_checker"}
    elif path == "/update_weights_from_tensor":
        binary = {"type": "string", "format": "binary"}
        made["requestBody"] = {"content": {"application/octet-stream": {"schema": binary}},
                               "required": True}  # fmt: skip
    elif path == "/operations/{op_id}/{act}":
        made["requestBody"] = {"content": {JSON: {"schema": {**OBJECT, "properties":
                               {"by_s": {"type": "number"}}, "required": ["by_s"]}}}}  # fmt: skip
    return made


def document() -> dict[str, Any]:
    """The document; a route that is in neither it nor LEFT_OUT is a KeyError."""
    paths: dict[str, dict[str, Schema]] = {}
    for route, _, methods, access in ROUTES:
        path = route.replace(":path}", "}")
        if path not in LEFT_OUT:
            for method in methods:
                paths.setdefault(path, {})[method.lower()] = _operation(method, path, access)
    schemas = _without_lookahead({**bodies(), **components()})
    key = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "engine", "version": "1"},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": key}},
    }


def _without_lookahead(schema: Any) -> Any:
    """Patterns end with Python's own guard against a newline, which JSON schema need not."""
    if isinstance(schema, dict):
        return {key: _without_lookahead(value) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_without_lookahead(item) for item in schema]
    return schema.removesuffix(r"(?!\n)") if isinstance(schema, str) else schema

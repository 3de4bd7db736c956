"""Bodies that the engine takes, as JSON schemas: from the structs that read them, with the bounds
that the routes check by hand, as docs/engine-http.md has them."""

from __future__ import annotations

import msgspec

from engine.frontend import http_admin, http_generation, http_push, http_storage, http_weights
from engine.frontend.generate_input import MAX_TOP_LOGPROBS, GenerateInput
from engine.frontend.limits import MAX_EXTRA_KEY_CHARS
from engine.frontend.openai_input import ChatInput, CompletionInput
from engine.frontend.sampling import (
    MAX_SAMPLES,
    MAX_STOP_CHARS,
    MAX_STOPS,
    SamplingInput,
)
from engine.frontend.score_input import ScoreInput
from tests.conformance.engine_answers import INTEGER, NULL, REF, STRING, Schema, many, ref, some

BODIES: dict[str, type[msgspec.Struct]] = {
    "/generate": GenerateInput,
    "/v1/completions": CompletionInput,
    "/v1/chat/completions": ChatInput,
    "/v1/score": ScoreInput,
    "/abort_request": http_admin._Abort,
    "/update_weights_from_disk": http_weights._FromDisk,
    "/update_weight_version": http_weights._Version,
    "/get_weights_by_name": http_weights._ByName,
    "/weights_checker": http_weights._Check,
    "/update_weights_from_distributed": http_push._Distributed,
    "/destroy_weights_update_group": http_push._DestroyGroup,
    "/begin_weight_update": http_push._Begin,
    "/end_weight_update": http_push._End,
    "/pause_generation": http_generation._Pause,
    "/continue_generation": http_generation._Continue,
    "/release_memory_occupation": http_generation._Memory,
    "/resume_memory_occupation": http_generation._Memory,
    "/hicache/storage-backend": http_storage._Attach,
}
VOCABULARY = 49152
_BELOW = r"[0-9]{1,4}|[1-3][0-9]{4}|4[0-8][0-9]{3}|490[0-9]{2}|491[0-4][0-9]|4915[01]"


def _number(low: float, high: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high}


def _above(low: float, high: float) -> Schema:
    return {"type": "number", "exclusiveMinimum": low, "maximum": high}


def _integer(low: int, high: int | None = None) -> Schema:
    return {"type": "integer", "minimum": low} | ({} if high is None else {"maximum": high})


_TOKEN = _integer(0, VOCABULARY - 1)
_IDS = {**many(_TOKEN), "minItems": 1}
_TEXT = {**STRING, "minLength": 1}
_STOP = {**STRING, "maxLength": MAX_STOP_CHARS}
_SEED = _integer(-(2**63), 2**63 - 1)
_BIAS = {
    "type": "object",
    "propertyNames": {"pattern": f"^0{{0,9}}({_BELOW})$"},
    "additionalProperties": _number(-100, 100),
}
_SETTINGS: dict[str, Schema] = {
    "max_new_tokens": _integer(0),
    "min_new_tokens": _integer(0),
    "min_tokens": _integer(0),
    "temperature": {"type": "number", "minimum": 0},
    "top_p": _above(0, 1),
    "min_p": _number(0, 1),
    "frequency_penalty": _number(-2, 2),
    "presence_penalty": _number(-2, 2),
    "repetition_penalty": _above(0, 2),
    "logit_bias": _BIAS,
    "sampling_seed": _SEED,
    "seed": _SEED,
    "stop": some(_STOP, {**many(_STOP), "maxItems": MAX_STOPS}),
    "stop_token_ids": many(_TOKEN),
    "n": _integer(1, MAX_SAMPLES),
}
_REQUEST: dict[str, Schema] = {
    "routed_dp_rank": _integer(0, 1),
    "extra_key": {**STRING, "maxLength": MAX_EXTRA_KEY_CHARS},
    "rid": {**STRING, "maxLength": 256},
    "max_tokens": _integer(0),
    "max_completion_tokens": _integer(0),
}
_SCORES = _integer(0, MAX_TOP_LOGPROBS)
_BOUNDS: dict[str, dict[str, Schema]] = {
    "SamplingInput": _SETTINGS,
    "GenerateInput": {
        **_REQUEST,
        "rid": {**STRING, "minLength": 1, "maxLength": 256},
        "logprob_start_len": _integer(-1),
        "top_logprobs_num": _SCORES,
        "token_ids_logprob": many(_TOKEN),
        "sampling_params": ref("SamplingInput"),
        "text": some(_TEXT, {**many(_TEXT), "minItems": 1}),
        "input_ids": some(_IDS, {**many(_IDS), "minItems": 1}),
    },
    "CompletionInput": {**_SETTINGS, **_REQUEST, "logprobs": _SCORES},
    "ChatInput": {
        **_SETTINGS,
        **_REQUEST,
        "top_logprobs": _SCORES,
        "max_tokens": INTEGER,  # its newer name is given too, as often as not
    },
}


def bodies() -> dict[str, Schema]:
    """Every body by name."""
    structs = [*BODIES.values(), SamplingInput]
    _, made = msgspec.json.schema_components(structs, ref_template=REF)
    for name, bounds in _BOUNDS.items():
        members = made[name]["properties"]
        for field, schema in bounds.items():
            if field in members:
                members[field] = some(schema, NULL)
    made["GenerateInput"]["anyOf"] = [{"required": ["text"]}, {"required": ["input_ids"]}]
    native, completion = made["GenerateInput"]["properties"], made["CompletionInput"]
    completion["properties"]["prompt"] = some(
        native["text"]["anyOf"][0], native["input_ids"]["anyOf"][0]
    )
    completion["required"] = ["prompt"]
    part = {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": STRING},
        "required": ["type", "text"],
    }
    made["Message"]["properties"]["content"] = some(STRING, many(part), NULL)
    made["ChatInput"]["properties"]["messages"]["minItems"] = 1
    made["ScoreInput"]["properties"] |= {
        "query": STRING,
        "items": some(STRING, {**many(STRING), "minItems": 1}),
        "label_token_ids": _IDS,
    }
    return made

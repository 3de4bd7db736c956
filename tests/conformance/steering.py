"""What generated requests to the engine may name, and how they are kept short."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any  # a generated body is any JSON

import schemathesis
from schemathesis import BaseSchema, Case

from engine.frontend.sampling import MAX_SAMPLES
from engine.protocol import MAX_TIMEOUT_S
from tests.conformance.cases import config_of
from tests.conformance.engine_document import document
from tests.fakes.engine_process import ADMIN_KEY

HEADERS = {"Authorization": f"Bearer {ADMIN_KEY}"}
MOST_TOKENS, MOST_SAMPLES, MOST_S = 4, 3, 2
_LENGTHS = ("max_new_tokens", "max_tokens", "max_completion_tokens")


def loaded(base_url: str, model: Path, op_ids: list[str]) -> BaseSchema:
    """The document with words that this engine knows."""
    words: dict[str, list[Any]] = {
        "path.model_id": [model.name],
        "path.op_id": op_ids,
        "body.text": ["Hi", "The capital of France is"],
        "body.prompt": ["Hi"],
        "body.query": ["Is it "],
        "body.items": ["yes"],
        "body.name": ["model.norm.weight", "model.embed_tokens.weight"],
        "body.model_path": [str(model)],
        "body.hicache_storage_backend": ["file"],
        "body.hicache_storage_backend_extra_config_json": ["{}"],
    }
    return schemathesis.openapi.from_dict(document(), config=config_of(base_url, words, {}))


def steer(case: Case) -> bool:
    """Few tokens, and no long wait for an engine that is busy."""
    if isinstance(case.body, dict):
        if case.path == "/generate":
            _shorten_all(case.body, case.body.get("sampling_params"))
        elif case.path.endswith("/completions"):
            if not case.body.keys() & set(_LENGTHS):
                case.body["max_tokens"] = MOST_TOKENS
            _shorten(case.body)
        _wait_less(case.body)
    _wait_less(case.query)
    return True


def _shorten_all(body: dict[str, Any], settings: object) -> None:
    if settings is None:
        body["sampling_params"] = {"max_new_tokens": MOST_TOKENS}
    for one in settings if isinstance(settings, list) else [settings]:
        if isinstance(one, dict):
            one.setdefault("max_new_tokens", MOST_TOKENS)
            _shorten(one)


def _shorten(settings: dict[str, Any]) -> None:
    for name in _LENGTHS:
        if name in settings and (settings[name] is None or _is_over(settings[name], MOST_TOKENS)):
            settings[name] = MOST_TOKENS
    if _is_over(settings.get("n"), MOST_SAMPLES, MAX_SAMPLES):
        settings["n"] = MOST_SAMPLES


def _wait_less(fields: dict[str, Any]) -> None:
    for name, limit in (("timeout", MAX_TIMEOUT_S), ("receive_timeout", 3600)):
        if _is_over(fields.get(name), MOST_S, limit):
            fields[name] = MOST_S


def _is_over(value: object, most: float, limit: float = math.inf) -> bool:
    """A number that is allowed and too much for a test."""
    return isinstance(value, int | float) and not isinstance(value, bool) and most < value <= limit

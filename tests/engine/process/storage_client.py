"""What tests of storage backends ask of a real engine."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.fakes.engine_process import ADMIN_KEY, EngineProcess
from tests.fakes.waiting import wait_until

ADMIN = {"Authorization": f"Bearer {ADMIN_KEY}"}
ROUTE = "/hicache/storage-backend"
PROMPT = [(i * 7919) % 40_000 + 100 for i in range(600)]


def attach(
    engine: EngineProcess,
    backend: str = "file",
    config: dict[str, Any] | str | None = None,
    **more: Any,
) -> httpx.Response:
    """PUT; the engine may be busy with copies for a moment."""
    body = {"hicache_storage_backend": backend, "timeout": 120, **more}
    if config is not None:
        text = config if isinstance(config, str) else json.dumps(config)
        body["hicache_storage_backend_extra_config_json"] = text
    return engine.client.put(ROUTE, headers=ADMIN, json=body)


def detach(engine: EngineProcess, **more: Any) -> httpx.Response:
    return engine.client.delete(ROUTE, headers=ADMIN, params={"timeout": 120, **more})


def clear(engine: EngineProcess, **more: Any) -> httpx.Response:
    return engine.client.post(f"{ROUTE}/clear", headers=ADMIN, params={"timeout": 120, **more})


def status(engine: EngineProcess) -> dict[str, Any]:
    answer = engine.client.get(ROUTE, headers=ADMIN)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def flush(engine: EngineProcess) -> None:
    answer = engine.client.post("/flush_cache", headers=ADMIN, params={"timeout": 120})
    assert answer.status_code == 200, answer.text


def generate(
    engine: EngineProcess,
    ids: list[int] | None = None,
    max_new: int = 8,
    client: httpx.Client | None = None,
    **more: Any,
) -> dict[str, Any]:
    body = {
        "input_ids": PROMPT if ids is None else ids,
        "sampling_params": {"max_new_tokens": max_new, "temperature": 0},
        **more,
    }
    answer = (client or engine.client).post("/generate", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def tiers(reply: dict[str, Any]) -> tuple[int, int, int]:
    """Cached tokens from the device, the host and storage."""
    found = reply["meta_info"]["cached_tokens_details"]
    return found["device"], found["host"], found["storage"]


def until_idle(engine: EngineProcess) -> None:
    """Until no rank has anything in flight, copies to storage included."""

    def is_idle() -> bool:
        text = engine.client.get("/metrics").text
        idle = [line for line in text.splitlines() if line.startswith("sglang:rank_idle{")]
        return bool(idle) and all(line.endswith(" 1.0") for line in idle)

    wait_until(is_idle)

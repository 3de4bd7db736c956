"""Engines and jobs with storage backends in every state that a page has, for the look of them."""

from __future__ import annotations

from engine.protocol import Breaker
from tests.fakes.engine import FakeEngine
from tests.fakes.stack import Stack
from tests.fakes.waiting import wait_until

VALKEY = {
    "kind": "attach_storage_backend",
    "backend": "valkey",
    "config": {"url": "valkeys://kv-eu-2.internal:6380/0", "password": "look-canary"},
    "rank_configs": {"1": {"url": "valkeys://kv-eu-3.internal:6380/0"}},
}
FILE = {"kind": "attach_storage_backend", "backend": "file", "config": {"max_size": 1 << 34}}
NAMES = ("look-valkey", "look-drift", "look-none", "look-odd", "look-probing")
PAGES = [
    *("backends", "backend attached", "backend drifting", "backend none", "backend lost"),
    *("backend attach", "backend switch", "backend undo", "backend attach eic"),
    *("job attached", "job switched", "job attach refused", "job attach partial", "job probing"),
    *("job detached", "job cleared", "job policies", "engine with tiers"),
    *("do detach", "do clear", "do policies", "do undo policies"),
]


def storage_states(stack: Stack, engines: dict[str, FakeEngine], lost: str) -> dict[str, str]:
    """name → path."""
    valkey, drift, odd, probing = (
        engines[name] for name in ("look-valkey", "look-drift", "look-odd", "look-probing")
    )

    def done(engine: FakeEngine, **params: object) -> str:
        job_id = stack.submit(engine, **params)
        stack.ended(job_id)
        return job_id

    first = done(valkey, **VALKEY)
    switched = done(valkey, **FILE, replace=True, mode="drain")
    back = done(valkey, **VALKEY, replace=True)
    policies = done(valkey, kind="set_cache_policies", write_policy="write_back")
    cleared = done(valkey, kind="clear_storage_backend")
    done(drift, **VALKEY)
    drift.storage.breakers = {1: Breaker.OPEN}
    drift.storage.errors = {1: "-200 no space: 0 of 128 pages accepted"}
    drift.storage.drifting = {0}
    detached = done(odd, **FILE)
    detached = done(odd, kind="detach_storage_backend")
    odd.storage.refuse_ranks = {1: "connect to kv-eu-3.internal:6380: connection refused"}
    refused = done(odd, **VALKEY)
    odd.storage.refuse_ranks = {}
    odd.fail_ranks, odd.storage.fail_reasons = {1}, {1: "could not start its threads"}
    partial = done(odd, **VALKEY)
    probing.storage.prepare_s = 3600
    waiting = stack.submit(probing, **FILE, timeout_s=600)
    stack.until(waiting, phase="preparing", state="dispatched")
    wait_until(lambda: stack.engine("look-drift")["ranks"][1]["storage"]["breaker"] == "open")
    return {
        "backends": "/backends",
        "backend attached": "/engines/look-valkey/backend",
        "backend drifting": "/engines/look-drift/backend",
        "backend none": "/engines/look-none/backend",
        "backend lost": f"/engines/{lost}/backend",
        "backend attach": "/engines/look-none/backend/attach?backend=valkey",
        "backend attach eic": "/engines/look-none/backend/attach?backend=hf3fs",
        "backend switch": "/engines/look-valkey/backend/attach?backend=nixl",
        "backend undo": f"/engines/look-valkey/backend/attach?undo={back}",
        "job attached": f"/jobs/{first}",
        "job switched": f"/jobs/{switched}",
        "job attach refused": f"/jobs/{refused}",
        "job attach partial": f"/jobs/{partial}",
        "job probing": f"/jobs/{waiting}",
        "job detached": f"/jobs/{detached}",
        "job cleared": f"/jobs/{cleared}",
        "job policies": f"/jobs/{policies}",
        "engine with tiers": "/engines/look-valkey",
        "do detach": "/engines/look-valkey/do/detach_storage_backend",
        "do clear": "/engines/look-valkey/do/clear_storage_backend",
        "do policies": "/engines/look-valkey/do/set_cache_policies",
        "do undo policies": f"/engines/look-valkey/do/set_cache_policies?undo={policies}",
    }

"""Scripts that ask for jobs over the REST API, as the documents tell them to: a key for each
request, and the same request again for as long as no answer came.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.chaos.stack import Chaos, now
from tests.fakes.waiting import PATIENCE_S

_REQUEST_S = 30.0
_AGAIN_S = 0.15
_TRY_LATER = frozenset({429, 500, 502, 503, 504})


@dataclass
class Asked:
    """One request and all that was answered to it."""

    key: str
    engine: str
    kind: str
    job_ids: set[str] = field(default_factory=set)
    refused: str = ""  # a definite no, with its status
    sent: int = 0
    begun_at: float = 0.0
    ended_at: float | None = None
    end: str = ""  # the state that it was told last
    trouble: str = ""  # what no client should see


class Clients:
    """So many at once; `total` jobs in all. `asked` is theirs until `join`, then the oracle's."""

    def __init__(self, chaos: Chaos, *, total: int, at_once: int, seed: int) -> None:
        self._chaos, self._seed, self.total = chaos, seed, total
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self.asked: list[Asked] = []
        self.acts: dict[str, int] = defaultdict(int)  # cancels and extensions that were taken
        self.ended = 0
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="client")
        self._runs: list[Future[None]] = [
            self._pool.submit(self._run, random.Random(seed * 1000 + number))
            for number in range(at_once)
        ]

    @property
    def are_done(self) -> bool:
        return all(run.done() for run in self._runs)

    def join(self) -> None:
        """Wait for all. Raises what any of them raised."""
        for run in self._runs:
            run.result()
        self._pool.shutdown()

    def _run(self, rng: random.Random) -> None:
        then: list[tuple[str, str, dict[str, Any]]] = []
        while True:
            with self._lock:
                number = next(self._numbers)
            if number >= self.total and not then:
                return
            if then:
                engine, kind, params = then.pop()
            else:
                engine = rng.choice(self._chaos.engines).name
                kind, params = some_job(rng, str(self._chaos.models))
            asked = self._carry_out(rng, f"chaos-{self._seed}-{number}", engine, kind, params)
            if asked.end == "failed":
                time.sleep(rng.uniform(0.2, 0.8))  # perhaps a rank starts, and needs a moment
            if kind == "pause_generation":
                then.append((engine, "continue_generation", {}))
            elif kind == "continue_generation" and asked.end != "succeeded" and not asked.trouble:
                then.append((engine, kind, params))  # an engine is not left paused

    def _carry_out(
        self, rng: random.Random, key: str, engine: str, kind: str, params: dict[str, Any]
    ) -> Asked:
        asked = Asked(key, engine, kind, begun_at=now())
        with self._lock:
            self.asked.append(asked)
        body = {
            "engine": engine,
            "kind": kind,
            "params": params,
            "reason": "chaos",
            "on_conflict": "queue",
        }
        for _ in range(2 if rng.random() < 0.15 else 1):  # now and then although it was answered
            self._ask(asked, body)
        if asked.job_ids:
            (job_id, *_) = asked.job_ids
            self._interfere(rng, asked, job_id)
            self._until_ended(asked, job_id)
        asked.ended_at = now()
        with self._lock:
            self.ended += 1
        return asked

    def _ask(self, asked: Asked, body: dict[str, Any]) -> None:
        def once() -> httpx.Response:
            asked.sent += 1
            headers = {"Idempotency-Key": asked.key}
            return self._chaos.stack.request(
                "POST", "/jobs", json=body, headers=headers, timeout=_REQUEST_S
            )

        answer = answered(once)
        if answer.status_code in (200, 202):
            asked.job_ids.add(str(answer.json()["id"]))
        else:
            asked.refused = f"{answer.status_code} {answer.text[:200]}"

    def _interfere(self, rng: random.Random, asked: Asked, job_id: str) -> None:
        """Cancel it or give it more time, once in a while; a conflict is a fair answer."""
        what, body = "cancel", {"reason": "chaos"}
        chance = rng.random()
        if chance > 0.15 or asked.kind in ("pause_generation", "continue_generation"):
            return
        if chance > 0.09:
            what, body = "extend", {"by_s": 3}
        time.sleep(rng.uniform(0, 0.6))
        path = f"/jobs/{job_id}/{what}"
        answer = answered(
            lambda: self._chaos.stack.request("POST", path, json=body, timeout=_REQUEST_S)
        )
        if answer.status_code not in (200, 409):
            asked.trouble = f"{what}: {answer.status_code} {answer.text[:200]}"
        with self._lock:
            self.acts[what] += answer.status_code == 200

    def _until_ended(self, asked: Asked, job_id: str) -> None:
        gives_up_at = now() + PATIENCE_S
        while now() < gives_up_at:
            answer = self._read(f"/jobs/{job_id}?wait_s=5")
            if answer.status_code != 200:
                asked.trouble = f"{answer.status_code} {answer.text[:200]}"
                return
            if answer.json()["finished_at"]:
                asked.end = str(answer.json()["state"])
                return
        asked.trouble = "it did not end"

    def _read(self, path: str) -> httpx.Response:
        return answered(lambda: self._chaos.stack.request("GET", path, timeout=_REQUEST_S))


def answered(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """The first answer that is one. Nothing came, or "try later": ask again, as scripts do."""
    gives_up_at = now() + PATIENCE_S
    while True:
        try:
            answer = ask()
        except httpx.TransportError:
            answer = None
        if answer is not None and answer.status_code not in _TRY_LATER:
            return answer
        last = answer.text[:300] if answer is not None else "no answer"
        assert now() < gives_up_at, f"no answer within {PATIENCE_S} s: {last}"
        time.sleep(_AGAIN_S)


def some_job(rng: random.Random, models: str) -> tuple[str, dict[str, Any]]:
    """A kind and its parameters: flushes, weights and backends mixed."""
    waiting = {
        "mode": rng.choice(("wait", "wait", "drain", "retract", "abort")),
        "timeout_s": round(rng.uniform(2, 8), 1),
    }
    kind = rng.choices(list(_SHARES), weights=list(_SHARES.values()))[0]
    match kind:
        case "flush_cache":
            at_once = {"mode": "if_idle", "timeout_s": 0}
            return kind, at_once if rng.random() < 0.15 else waiting
        case "update_weights_from_disk":
            path = f"{models}/{rng.choice(('one', 'two'))}"
            return kind, {**waiting, "model_path": path, "flush_cache": rng.random() < 0.7}
        case "update_weight_version":
            return kind, {"new_version": f"v{rng.randrange(1000)}"}
        case "attach_storage_backend":
            config = {"prefetch_threshold": rng.choice((16, 32))}
            is_replacing = rng.random() < 0.7
            return kind, {**waiting, "backend": "file", "config": config, "replace": is_replacing}
        case "set_cache_policies":
            return kind, {"write_policy": rng.choice(("write_through", "write_back"))}
        case "pause_generation":
            return kind, {"pause_mode": rng.choice(("abort", "retract"))}
    return kind, waiting  # detach, clear


_SHARES = {
    "flush_cache": 44,
    "update_weights_from_disk": 18,
    "update_weight_version": 9,
    "attach_storage_backend": 10,
    "detach_storage_backend": 6,
    "clear_storage_backend": 5,
    "set_cache_policies": 5,
    "pause_generation": 3,
}

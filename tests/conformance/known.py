"""What generated requests to the console may name, made through its API: engines, jobs, people.

The engine that is asked, the caller and the caller's token stay as they are; there are spares to
change and to remove.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from schemathesis import Case, Config

from engine.protocol import MAX_TIMEOUT_S
from tests.conformance.cases import config_of
from tests.fakes.engine import FakeEngine
from tests.fakes.stack import Stack
from tests.fakes.waiting import wait_until

API = "/api/v1"
SPARES = 8


@contextmanager
def console(database_url: str = "", *, is_whole: bool = True) -> Iterator[Known]:
    """A stack of its own with an idle engine and a busy one, and what is known of it; not whole: no
    worker and no relay, so that it starts in half the time and no job is carried out."""
    env = {"QUIESCE_API_RATE_PER_SECOND": "100000"}
    stack = Stack(workers=2, database_url=database_url, env=env)
    with ExitStack() as ends:
        ends.callback(stack.down)
        stack.up(*(() if is_whole else ("valkey", "web")))
        wait_until(lambda: _answers(stack))
        idle = ends.enter_context(FakeEngine(stack.run_dir, name="idle"))
        busy = ends.enter_context(FakeEngine(stack.run_dir, name="busy"))
        busy.busy()
        for engine in (idle, busy):
            stack.register(engine)
        yield Known(stack, idle, busy)


def _answers(stack: Stack) -> bool:
    try:
        return stack.request("GET", "/me").status_code == 200
    except httpx.TransportError:
        return False


class Known:
    """One console with things in it."""

    def __init__(self, stack: Stack, idle: FakeEngine, busy: FakeEngine) -> None:
        self.stack = stack
        self.engine = idle.name
        # As a token's end is bound by the day, so is this one word.
        self.later = (datetime.now(UTC) + timedelta(days=30)).isoformat()
        self.headers = {"Authorization": f"Bearer {stack.token}"}
        self.spares = [self._made("/engines", name=f"spare-{number}", **_addresses(stack.run_dir))
                       ["name"] for number in range(SPARES)]  # fmt: skip
        self.people = [self._made("/users", username=f"someone-{number}")["username"]
                       for number in range(SPARES)]  # fmt: skip
        self.tokens = [self._made("/tokens", name="spare", expires_at=self.later)["prefix"]
                       for _ in range(SPARES)]  # fmt: skip
        grants = [self._made(f"/users/{self.people[0]}/grants", role="operator", engines=f"a={n}")
                  for n in range(SPARES)]  # fmt: skip
        self.grants = [int(grant["id"]) for grant in grants]
        self.uploads = [self._made("/uploads", name=f"w{number}.safetensors", size_bytes=1000)["id"]
                        for number in range(SPARES)]  # fmt: skip
        self.paused, self.failed = self._ended(idle)
        self.held = stack.submit(busy, timeout_s=3600)
        self.jobs = [self.paused, self.failed, self.held]
        for _ in range(SPARES):
            asked = stack.ask(busy, on_conflict="queue")
            assert asked.status_code == 202, asked.text
            self.jobs.append(asked.json()["id"])

    def _ended(self, engine: FakeEngine) -> tuple[str, str]:
        """A job that can be undone and one that can be tried again; where none is carried out, one
        that waits for a worker."""
        if "worker" not in self.stack.parts:
            waits = self.stack.submit(engine)
            return waits, waits
        paused = self.stack.submit(engine, kind="pause_generation", pause_mode="in_place")
        assert self.stack.ended(paused)["state"] == "succeeded"
        engine.fail_ranks = {0}
        failed = self.stack.submit(engine)
        assert self.stack.ended(failed)["state"] != "succeeded"
        engine.fail_ranks = set()
        return paused, failed

    def _made(self, path: str, **body: object) -> dict[str, str]:
        answer = self.stack.request("POST", path, json=body)
        assert answer.status_code in (200, 201), answer.text
        return dict(answer.json())

    def config(self) -> Config:
        """Names to use, and other ones for what changes or removes."""
        one = f"{API}/users/{{username}}"
        person = {"path.username": self.people}
        queue = {"body.on_conflict": ["queue"]}
        return config_of(
            self.stack.url,
            {
                "path.name": [self.engine],
                "path.username": ["admin", *self.people],
                "path.job_id": self.jobs,
                "path.upload_id": self.uploads,
                "path.prefix": self.tokens,
                "path.seq": [1, 2, 7],
                "query.engine": [self.engine],
                "query.offset": [0],
                "query.cursor": [""],
                "query.since": ["2026-01-01T00:00:00Z"],
                "body.engine": [self.engine],
                "body.owner": self.people,
                "body.engines": ["", "a=1", "a=1,b!=2"],
                "body.expires_at": [self.later],
                "body.control_address": [f"ipc://{self.stack.run_dir}/c"],
                "body.events_address": [f"ipc://{self.stack.run_dir}/e"],
                "body.curve_key": [""],
            },
            {
                f"PATCH {API}/engines/{{name}}": {"path.name": self.spares},
                f"DELETE {API}/engines/{{name}}": {"path.name": self.spares},
                f"POST {API}/engines": {"body.name": [f"new-{n}" for n in range(SPARES)]},
                f"POST {API}/uploads": {
                    "body.name": ["new.safetensors"],
                    "body.size_bytes": [1000, 2000],
                },
                f"PATCH {one}": person,
                f"POST {one}/grants": person,
                f"DELETE {one}/grants/{{grant_id}}": {
                    "path.username": self.people[:1],
                    "path.grant_id": self.grants,
                },
                f"POST {API}/jobs/{{job_id}}/cancel": {"path.job_id": self.jobs[3:]},
                f"POST {API}/jobs/{{job_id}}/extend": {"path.job_id": [self.held]},
                f"POST {API}/jobs/{{job_id}}/force": {"path.job_id": [self.held]},
                f"POST {API}/jobs/{{job_id}}/retry": {"path.job_id": [self.failed], **queue},
                f"POST {API}/jobs/{{job_id}}/undo": {"path.job_id": [self.paused], **queue},
                f"GET {API}/events": {"query.since": [0, 5]},
            },
        )

    def steer(self, case: Case) -> bool:
        """Nothing waits; whoever asks, what they ask with and the engine are not taken away, and no
        deadline moves back: it would end the job that waits."""
        if case.path.endswith("/extend") and isinstance(case.body, dict):
            by_s = case.body.get("by_s")
            if isinstance(by_s, float | int) and -MAX_TIMEOUT_S <= by_s < 0:
                case.body["by_s"] = -by_s
        if case.path == f"{API}/events" and _is_number(case.query.get("for_s", "3600")):
            case.query["for_s"] = 0
        if _is_number(case.query.get("wait_s")):
            case.query["wait_s"] = min(float(case.query["wait_s"]), 0.2)
        if case.query.get("cursor") == "":
            del case.query["cursor"]  # the first page
        if case.method == "GET":
            return True
        kept = {"username": "admin", "name": self.engine, "prefix": self.stack.token[4:12]}
        return not any(kept.get(name) in str(value) for name, value in case.path_parameters.items()
                       if name in kept)  # fmt: skip


def _is_number(value: object) -> bool:
    try:
        return float(str(value)) >= 0
    except ValueError:
        return False


def _addresses(folder: Path) -> dict[str, str]:
    name = secrets.token_hex(4)
    return {
        "control_address": f"ipc://{folder}/{name}-c.sock",
        "events_address": f"ipc://{folder}/{name}-e.sock",
    }

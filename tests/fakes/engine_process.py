"""A real engine for process tests: frontend and ranks as `python -m engine serve` starts them.

Not a fake; it lives here beside the console's stack, which does the same for the console.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.fakes import plain_http
from tests.fakes.ports import free_port
from tests.fakes.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]
ADMIN_KEY = "canary-admin-key-3f9a"
API_KEY = "canary-api-key-77b1"
CANARY = "The capital of France is"


class EngineProcess:
    """One engine with its own state folder. `base` is its URL."""

    def __init__(self, model: Path, kernels: Path, *, dtype: str = "float32", **options: object):
        self.dir = Path(tempfile.mkdtemp(prefix="qe-"))
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.log_path = self.dir / "engine.log"
        self.api_key = str(options.pop("api_key", ""))
        flags = {
            "model": model,
            "state-dir": self.dir,
            "kernels-dir": kernels,
            "port": self.port,
            "dp-size": 2,
            "threads": 1,  # more wait for each other, beside other tests
            "dtype": dtype,
            "max-total-tokens": 8192,
            "context-length": 2048,
            **{name.replace("_", "-"): value for name, value in options.items()},
        }
        self.command = [sys.executable, "-m", "engine", "serve"]
        for name, value in flags.items():
            self.command += [f"--{name}", str(value)]
        self.environment: dict[str, str] = {}  # on top of what it needs
        self.process: subprocess.Popen[bytes] | None = None
        self.word = ""  # what these weights say to CANARY
        self.client = plain_http.client(
            base_url=self.base,
            headers={"Authorization": f"Bearer {self.api_key}"} if self.api_key else {},
        )

    def start(self, *, is_awaited: bool = True) -> EngineProcess:
        """Start and wait until both ranks serve."""
        env = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        env |= {"QUIESCE_ADMIN_API_KEY": ADMIN_KEY, "PYTHONPATH": str(ROOT)}
        if self.api_key:
            env["QUIESCE_API_KEY"] = self.api_key
        env |= self.environment
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True
            )
        if is_awaited:
            self.until_serving()
        return self

    def until_serving(self) -> None:
        """Wait until every rank is proven and open."""
        wait_until(lambda: all(r["online"] and r["ready"] for r in self.loads()))
        wait_until(lambda: self.client.get("/health").status_code == 200)

    def stop(self) -> None:
        """End it in order; what is left is killed."""
        self.client.close()
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def restart(self, *flags: str, is_awaited: bool = True) -> None:
        """End it in order and start it on the same state, with more flags."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_S)
        self.command += flags
        self.start(is_awaited=is_awaited)

    def replace_flag(self, name: str, value: str) -> None:
        """Another value for the next start."""
        self.command[self.command.index(name) + 1] = value

    def limit_file_size(self, child: str, size_bytes: int) -> None:
        """What a full disk is to a process: a write beyond it fails."""
        pid = self.pids(child)[-1]
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, most))

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def pids(self, child: str) -> list[int]:
        """Process ids that this child has had, oldest first."""
        found = re.findall(rf"child started' child='{re.escape(child)}' pid=(\d+)", self.log())
        return [int(pid) for pid in found]

    def kill(self, child: str, number: int = signal.SIGKILL) -> None:
        """Signal the frontend or a rank."""
        os.kill(self.pids(child)[-1], number)

    def kill_rank(self, rank: int) -> None:
        """Kill it, and wait until the frontend knows its successor."""

        def incarnation() -> int:
            ranks = self.admin("GET", "/hicache/storage-backend").json()["ranks"]
            return int(ranks[rank]["incarnation"])

        before = incarnation()
        self.kill(f"rank {rank}")
        wait_until(lambda: incarnation() > before)

    # ---- requests ----------------------------------------------------------------------------

    def loads(self) -> list[dict[str, Any]]:
        try:
            answer = self.client.get("/v1/loads")
        except httpx.TransportError:
            return [{"online": False, "ready": False}]
        return list(answer.json()["loads"])

    def generate(self, prompt: object, max_new: int = 8, **more: Any) -> httpx.Response:
        """POST /generate, greedy unless told otherwise."""
        sampling = {"temperature": 0, "max_new_tokens": max_new, **more.pop("sampling", {})}
        key = "text" if isinstance(prompt, str) else "input_ids"
        return self.client.post(
            "/generate", json={key: prompt, "sampling_params": sampling, **more}
        )

    def is_itself(self, **more: Any) -> bool:
        """It says what it said when it was first asked here."""
        word = self.text(CANARY, 1, **more)
        self.word = self.word or word
        return word == self.word

    def text(self, prompt: object, max_new: int = 8, **more: Any) -> str:
        answer = self.generate(prompt, max_new, **more)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["text"])

    def cached(self, prompt: object, **more: Any) -> int:
        return int(self.generate(prompt, 1, **more).json()["meta_info"]["cached_tokens"])

    def admin(self, method: str, path: str, **options: Any) -> httpx.Response:
        """A request with the admin key, on a connection of its own."""
        headers = {"Authorization": f"Bearer {ADMIN_KEY}", **options.pop("headers", {})}
        return plain_http.request(
            method,
            self.base + path,
            headers=headers,
            timeout=options.pop("timeout", PATIENCE_S),
            **options,
        )

    def flush(self, **query: Any) -> httpx.Response:
        """POST /flush_cache with these parameters, answered as JSON."""
        headers = {"Accept": "application/json"}
        return self.admin("POST", "/flush_cache", params=query, headers=headers)

    def operations(self) -> dict[str, Any]:
        return dict(self.admin("GET", "/operations").json())

    def busy(self, tokens: int, **more: Any) -> Background:
        """A generation of so many tokens in the background; returns once it runs."""
        asked_at = time.time()
        before = self.loads()
        if any(load["num_running_reqs"] for load in before):
            # A rank's report may be older than its last reply: what runs is in the next ones.
            wait_until(
                lambda: all(one["timestamp"] > asked_at for one in self.loads() if one["online"])
            )
            before = self.loads()
        num_before = sum(load["num_running_reqs"] for load in before)
        work = Background(
            lambda: self.generate(
                "Once upon a time", tokens, sampling={"ignore_eos": True}, **more
            ).json()
        )
        wait_until(lambda: sum(r["num_running_reqs"] for r in self.loads()) > num_before)
        return work

    def until_no_page_is_used(self) -> None:
        """Nor by a request that is still to be given up."""
        self.until_idle()
        wait_until(lambda: not any(load["num_used_tokens"] for load in self.loads()))

    def end(self, work: Background) -> Any:
        """Abort what runs, and return what became of `work`."""
        assert work.is_running, "it ended by itself"
        self.admin("POST", "/abort_request", json={"abort_all": True}).raise_for_status()
        return work.result()

    def generated(self) -> int:
        """Tokens that all ranks have generated so far."""
        lines = self.client.get("/metrics").text.splitlines()
        name = "sglang:generation_tokens_total{"
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith(name))

    def until_idle(self) -> None:
        wait_until(
            lambda: all(
                not r["num_running_reqs"] and not r["num_waiting_reqs"] for r in self.loads()
            ),
        )


class Background:
    """Work on a thread; `result` waits for it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self.ended_at = 0.0

        def run() -> None:
            try:
                self._value = work()
            except BaseException as error:  # noqa: BLE001 - handed to whoever asks
                self._error = error
            self.ended_at = time.monotonic()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def result(self) -> Any:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"not done after {PATIENCE_S} s"
        if self._error is not None:
            raise self._error
        return self._value

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The JSON of a finished server-sent event stream, without the closing [DONE]."""
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", lines[-1:]
    return [json.loads(line) for line in lines[:-1]]

"""bin/run's second half as a process: the whole real stack under its supervisor."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.fakes import plain_http
from tests.fakes.stack import free_port
from tests.fakes.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def supervised(
    model: Path, kernels: Path, *flags: str, env: dict[str, str] | None = None
) -> Iterator[Supervised]:
    """A started stack, removed at the end, however it ends."""
    stack = Supervised(model, kernels, *flags, env=env)
    try:
        stack.start()
        yield stack
    finally:
        stack.remove()


class Supervised:
    """One state folder; `start` and `stop` as often as you like."""

    def __init__(
        self, model: Path, kernels: Path, *flags: str, env: dict[str, str] | None = None
    ) -> None:
        self._env = env or {}
        self.dir = Path(tempfile.mkdtemp(prefix="qs-"))
        self.port, self.engine_port = free_port(), free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.engine_base = f"http://127.0.0.1:{self.engine_port}"
        (self.dir / "kernels").symlink_to(kernels)
        self.output_path = self.dir / "output.txt"
        self.command = [
            *(sys.executable, str(ROOT / "bin" / "lib" / "supervise.py")),
            *("--state-dir", str(self.dir), "--port", str(self.port)),
            *("--engine-port", str(self.engine_port), "--model", str(model), *flags),
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait for the ready line."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("QUIESCE_")}
        env.pop("DATABASE_URL", None)
        env.pop("REDIS_URL", None)
        env |= self._env
        with self.output_path.open("wb") as output:
            self.process = subprocess.Popen(
                self.command, env=env, stdout=output, stderr=output, start_new_session=True
            )
        wait_until(lambda: self.is_ready or self.process.poll() is not None)
        assert self.is_ready, self.output

    @property
    def output(self) -> str:
        return self.output_path.read_text(errors="replace")

    @property
    def is_ready(self) -> bool:
        return re.search(r"^ready: ", self.output, re.M) is not None

    @property
    def token(self) -> str:
        return (self.dir / "admin-token").read_text().strip()

    @property
    def password(self) -> str:
        return (self.dir / "admin-password").read_text().strip()

    def descendants(self) -> list[psutil.Process]:
        """Every process below the supervisor."""
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    def find(self, word: str) -> int | None:
        """Process id of the first descendant whose command line holds `word`."""
        for process in self.descendants():
            try:
                if word in " ".join(process.cmdline()):
                    return process.pid
            except psutil.NoSuchProcess:
                continue
        return None

    def child(self, word: str) -> psutil.Process:
        """That descendant; it must be there."""
        pid = self.find(word)
        assert pid is not None, f"no {word}"
        return psutil.Process(pid)

    def health(self) -> dict[str, object]:
        return dict(plain_http.get(f"{self.base}/healthz").json())

    def api(self, method: str, path: str, **options: object) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        return plain_http.request(method, f"{self.base}/api/v1{path}", headers=headers, **options)  # type: ignore[arg-type]

    def ended(self, job_id: str) -> dict[str, Any]:
        """The job once it has ended."""
        gives_up_at = time.monotonic() + PATIENCE_S
        while True:
            job = dict(self.api("GET", f"/jobs/{job_id}?wait_s=5").json())
            if job["finished_at"]:
                return job
            assert time.monotonic() < gives_up_at, f"no end within {PATIENCE_S} s: {job}"

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signal the supervisor and wait for it; returns its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def remove(self) -> None:
        """End everything and delete the state folder."""
        if self.process is not None and self.process.poll() is None:
            self.stop()
        shutil.rmtree(self.dir, ignore_errors=True)

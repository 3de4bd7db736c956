"""bin/test: set up, then every check in turn; stops at the first that fails.

--full adds the slow tests; any other argument goes to pytest, and then only pytest runs.
"""

from __future__ import annotations

import ctypes.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import environment
from environment import ROOT, VENV, say

# What is tested beside other tests, the longest first; what is in none of them comes last.
GROUPS = (
    "tests/console/pages",
    "tests/engine/process",
    "tests/console",
    "tests/engine",
    "tests/console/simulation",
    "tests/system",
    "tests/chaos",
    "tests/conformance",
    "tests",
)
REASON_LINES = 40  # of one failed group, said again at the end
AT_ONCE = 3  # each waits for its own processes about as much as it computes


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
    return 0 if rest else _all_groups(pytest)


@dataclass(frozen=True)
class Ended:
    """One group's pytest: how it ended, and all that it wrote."""

    group: str
    status: int
    took_s: float
    output: bytes


def _all_groups(pytest: list[str]) -> int:
    """Whoever is free takes the next group. Each is shown whole when it has ended."""
    started = time.monotonic()
    failed: list[Ended] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = [pool.submit(_run, group, pytest) for group in GROUPS]
        try:
            for run in as_completed(runs):
                ended = run.result()
                sys.stdout.buffer.write(ended.output)
                sys.stdout.flush()
                say(f"{ended.group}: status {ended.status} after {ended.took_s:.0f} s")
                if ended.status:
                    failed.append(ended)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    say(f"tests ended after {time.monotonic() - started:.0f} s")
    for ended in failed:
        say(f"failed: {ended.group}")
        print(*reasons(ended.output), sep="\n", flush=True)
    return 1 if failed else 0


def reasons(output: bytes) -> list[str]:
    """Of what pytest wrote in colours: what was not so, where, and in which test."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output.decode(errors="replace"))
    said = re.findall(r"^(?:E  |FAILED |ERROR |\S+\.py:\d+: ).*$", plain, re.MULTILINE)
    return (said or plain.splitlines())[-REASON_LINES:]


def _run(group: str, pytest: list[str]) -> Ended:
    """A group's tests, but for those of another group below it."""
    say(f"checking {group}")
    started = time.monotonic()
    below = [f"--ignore={other}" for other in GROUPS if other.startswith(f"{group}/")]
    with tempfile.TemporaryFile() as output:
        status = subprocess.run(
            [*pytest, "--color=yes", group, *below],
            cwd=ROOT, env=_env(), stdout=output, stderr=output, check=False,
        ).returncode  # fmt: skip
        output.seek(0)
        return Ended(group, status, time.monotonic() - started, output.read())


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

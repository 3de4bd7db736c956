"""The Triton kernels, and a model on them, without a card: interpreted, and compiled for Hopper.

Triton is imported either with its interpreter or without, once a process; so each half has one of
its own. What is checked is in `check_*.py`, which `tests/bench/gpu.sh` runs on a card as it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]
CHECKS = [
    str(path.relative_to(ROOT))
    for folder in ("kernels", "models")
    for path in sorted((ROOT / "tests" / "engine" / folder / "gpu").glob("check_*.py"))
]
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64",
    reason="there is no triton for this machine",
)


def run(command: list[str], folder: Path, *, is_interpreted: bool) -> str:
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(folder)}
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    env |= {"TRITON_INTERPRET": str(int(is_interpreted)), "TRITON_DEFAULT_FP_FUSION": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


def test_interpreted_they_do_as_torch_does(tmp_path: Path) -> None:
    assert len(CHECKS) == 4
    # As on a card: no plugin and no conftest, which would take longer to import than triton.
    command = ["pytest", "-q", "-c", "tests/bench/gpu/pytest.ini", "--rootdir", ".", "-W", "error"]
    command += CHECKS
    assert " passed" in run(command, tmp_path, is_interpreted=True)


def test_every_launch_is_compiled_for_a_hopper_card(tmp_path: Path) -> None:
    out = run(["tests.engine.kernels.gpu.compile_all"], tmp_path, is_interpreted=False)
    for name in ("add_norm", "silu_mul", "rotate_store", "decode", "join", "extend", "copy_pages"):
        assert f"{name}_kernel" in out
    assert "wgmma" in out  # tensor cores, as Hopper's own instructions reach them

"""Many writers at once on SQLite: no gap, one chain, nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.process
@pytest.mark.parametrize(
    "turns", [5, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
)
def test_64_writers_leave_no_gap_and_one_chain(tmp_path, turns):
    env = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    env |= {
        "QUIESCE_STATE_DIR": str(tmp_path),
        "QUIESCE_SECRET_KEY": os.urandom(30).hex(),
        "DJANGO_SETTINGS_MODULE": "console.project.settings",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }

    def run(*words):
        return subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )

    assert run("manage.py", "migrate", "--verbosity", "0").returncode == 0
    done = run("-m", "tests.console.audit.writers", str(turns))
    kept = 64 * turns * 4 // 5
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith(f"{kept} of {kept} in ") and "fault None" in done.stdout

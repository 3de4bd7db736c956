"""A worker that could be given a message twice does not start (J01)."""

from __future__ import annotations

import subprocess

import pytest

from tests.fakes.waiting import PATIENCE_S

pytestmark = pytest.mark.process


def test_a_visibility_timeout_shorter_than_a_task_keeps_a_worker_from_starting(stack):
    done = subprocess.run(
        stack.command("worker"),
        env={**stack.env, "QUIESCE_VISIBILITY_TIMEOUT_S": "2"},
        cwd=stack.dir,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode != 0
    assert "QUIESCE_VISIBILITY_TIMEOUT_S is 2; a task may run for 900 s" in done.stderr

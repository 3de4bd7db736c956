"""The benches run to their end and print their table; figures are judged by people, not here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.stack import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def run(script: str, *flags: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "bench" / script), *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_engine_bench_prints_every_row() -> None:
    out = run("engine.py", "--reps", "1", "--load-reps", "1", "--peers", "transformers")
    for row in ("prefill 512", "cold", "hit", "decode b1", "decode b8", "decode b32"):
        assert row in out
    assert "transformers 5" in out and "served well, requests/s" in out


def test_what_a_token_costs_is_told_for_rank_and_frontend() -> None:
    out = run("token_cost.py")
    assert "| rank, greedy, whole |" in out and "| frontend, streamed |" in out


def test_operations_under_load_are_told_beside_none() -> None:
    out = run("operations_load.py", "--reps", "1")
    for row in ("pieces/s outside pauses", "p99 wait", "| flush |", "| weight update |"):
        assert row in out


def test_the_console_bench_prints_both_percentiles() -> None:
    out = run("console.py", "--jobs", "10")
    assert "p50" in out
    assert "p99" in out


def test_a_hundred_broken_streams_miss_none_of_a_hundred_thousand_events() -> None:
    out = run("live.py", "--sockets", "20", "--seconds", "3", "--events", "100000")
    assert "100000 events written while they are read, 100 connections cut: " in out
    assert "cut: 0 missed, 0 twice, in order" in out
    assert "beside one that reads nothing" in out


def test_the_weights_bench_prints_every_row_and_both_comparisons() -> None:
    out = run("weights.py", "--reps", "1")
    for row in ("pause", "longest wait", "staging", "request to answer", "from tensors"):
        assert row in out
    assert "bytes ÷ bandwidth" in out and "stop and start" in out


def test_the_cache_bench_prints_every_tier_and_backend() -> None:
    out = run("hicache.py", "--reps", "1")
    for row in ("| cold |", "| L1 |", "| L2 |", "| L3 file |", "| L3 valkey, tcp |", "memcpy"):
        assert row in out
    assert "insert + match" in out and "mooncake, no master" in out


def test_the_step_bench_runs() -> None:
    out = run("model_step.py", "--seconds", "0.2")
    assert "| decode b32, context 512 |" in out and "GFLOP/s" in out


def test_the_gpu_bench_runs_every_part_without_a_card(tmp_path: Path) -> None:
    env = {**os.environ, "OUT": str(tmp_path / "out"), "QUIESCE_PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", str(ROOT / "tests" / "bench" / "gpu.sh"), "--dry-run"],
        cwd=ROOT,
        env=env | {"QUIESCE_GPU_WORK": str(tmp_path / "work")},
        capture_output=True,
        text=True,
        timeout=1300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert done.stdout.count(": passed, ") == 6
    for name in ("step", "http", "pause", "hicache", "kernels"):
        assert "the figures mean nothing" in (tmp_path / "out" / f"{name}.json").read_text()

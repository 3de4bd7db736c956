"""bin/run's promises: ready means ready, nothing is left behind, and what dies is named."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.fakes import plain_http
from tests.fakes.stack import free_port
from tests.fakes.supervised import ROOT, Supervised, supervised
from tests.fakes.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


@pytest.fixture
def shared(whole: Supervised) -> Supervised:
    wait_until(lambda: is_well(whole))
    return whole


def gone(processes: list[psutil.Process]) -> list[str]:
    return [p.name() for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def flush(stack: Supervised) -> str:
    body = {"engine": "local", "kind": "flush_cache", "params": {"timeout_s": 300}, "reason": "t"}
    job = stack.api("POST", "/jobs", json=body)
    assert job.status_code == 202, job.text
    return str(stack.ended(job.json()["id"])["state"])


def test_ready_means_that_a_job_runs(shared: Supervised) -> None:
    assert shared.output.count("\nready: ") + shared.output.startswith("ready: ") == 1
    assert shared.base in shared.output
    assert shared.engine_base in shared.output
    wait_until(lambda: plain_http.get(f"{shared.engine_base}/health").status_code == 200)
    assert flush(shared) == "succeeded"


def test_secrets_are_private_and_absent_from_the_logs(shared: Supervised) -> None:
    secrets = []
    names = ("admin-password", "admin-token", "engine-admin-key", "secret-key", "valkey/url")
    for name in names:
        path = shared.dir / name
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, name
        secrets.append(path.read_text().strip())
    assert stat.S_IMODE(shared.dir.stat().st_mode) == 0o700
    wall = shared.output + "".join(p.read_text() for p in (shared.dir / "logs").iterdir())
    lines = [" ".join(process.cmdline()) for process in shared.descendants()]
    for secret in secrets:
        assert secret not in wall
        assert not any(secret in line for line in lines)


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("uvicorn", "web"),
        ("manage.py relay", "relay"),
        ("manage.py reconcile", "reconciler"),
        ("celery", "worker"),
        ("valkey-server", "valkey"),
    ],
)
def test_a_child_that_dies_is_named_and_restarted(shared: Supervised, word: str, name: str) -> None:
    victim = shared.child(word)
    victim.kill()
    wait_until(lambda: f"{name} died (signal 9)" in shared.output)
    wait_until(lambda: shared.find(word) not in (None, victim.pid))
    wait_until(lambda: is_well(shared))
    assert flush(shared) == "succeeded"


def is_well(stack: Supervised) -> bool:
    try:
        health = stack.health()
    except httpx.HTTPError:
        return False
    engines = health["engines"]
    assert isinstance(engines, dict)
    return health["status"] == "ok" and engines.get("local") is True


def test_a_rank_that_dies_is_named_and_comes_back(shared: Supervised) -> None:
    shared.child("engine rank").kill()
    log = shared.dir / "logs" / "engine.log"
    wait_until(lambda: "was ended by SIGKILL" in log.read_text())

    def proven() -> bool:
        ranks = shared.api("GET", "/engines/local").json()["ranks"]
        return all(rank["online"] for rank in ranks) and flush(shared) == "succeeded"

    wait_until(proven, every_s=1.0)


def test_a_second_supervisor_of_one_folder_is_refused(shared: Supervised) -> None:
    command = [*shared.command]
    command[command.index("--port") + 1] = str(free_port())
    command[command.index("--engine-port") + 1] = str(free_port())
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert "another bin/run uses" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_ctrl_c_stops_all_in_order_and_a_second_start_finds_the_same(
    models: Path, cpu_ext_dir: Path
) -> None:
    with supervised(models / "one", cpu_ext_dir) as stack:
        before = (stack.dir / "admin-token").read_text()
        processes = stack.descendants()
        assert stack.stop(signal.SIGINT) == 0
        assert gone(processes) == []
        assert not (stack.dir / "valkey" / "url").exists()
        stack.start()
        assert (stack.dir / "admin-token").read_text() == before
        assert flush(stack) == "succeeded"
        processes = stack.descendants()
        assert stack.process is not None
        os.kill(stack.process.pid, signal.SIGKILL)
        stack.process.wait()
        wait_until(lambda: gone(processes) == [])


def test_five_deaths_in_a_minute_end_everything(models: Path, cpu_ext_dir: Path) -> None:
    with supervised(models / "one", cpu_ext_dir, "--no-engine") as stack:
        processes = stack.descendants()
        assert stack.process is not None
        deadline = time.monotonic() + PATIENCE_S
        while stack.process.poll() is None and time.monotonic() < deadline:
            try:
                stack.child("manage.py relay").kill()
            except (AssertionError, psutil.NoSuchProcess):
                time.sleep(0.1)
        assert stack.process.wait(PATIENCE_S) != 0
        assert "relay ended" in stack.output
        assert gone(processes) == []


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    script = ROOT / "bin" / "lib" / "start.py"
    return subprocess.run(
        [sys.executable, str(script), *flags],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_wrong_options_are_one_sentence(tmp_path: Path) -> None:
    state = str(tmp_path / "s")
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "state.json").write_text(json.dumps({"version": 99}))
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "state.json").write_text("{")
    cases = [
        (["--port", "x"], "--port is 'x'"),
        (["--port", "0"], "whole number from 1 to 65535"),
        (["--port", "8000", "--engine-port", "8000"], "both 8000"),
        (["--dp-size", "0"], "--dp-size"),
        (["--device", "tpu"], "must be one of cpu, cuda"),
        (["--dtype", "int8"], "must be one of bfloat16, float32"),
        (["--model", "/nowhere"], "no model at /nowhere"),
        (["--bogus"], "--bogus"),
        (["--state-dir", "/proc/nope"], "cannot use the state folder"),
        (["--state-dir", str(newer)], "newer than this Quiesce"),
        (["--state-dir", str(damaged)], "damaged"),
    ]
    for flags, words in cases:
        ports = ["--port", str(free_port()), "--engine-port", str(free_port())]
        base = ["--state-dir", state, *ports]
        done = run(*base, *flags)
        assert done.returncode != 0, flags
        assert words in done.stderr, (flags, done.stderr)
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr


@pytest.mark.parametrize(
    ("name", "url", "words"),
    [
        ("REDIS_URL", "redis://:hush@127.0.0.1:{port}/0", "no Redis answers at 127.0.0.1:{port}/"),
        ("DATABASE_URL", "postgresql://u:hush@127.0.0.1:{port}/d", "no PostgreSQL answers at"),
    ],
)
def test_an_external_part_that_does_not_answer_is_one_sentence(
    tmp_path: Path, name: str, url: str, words: str
) -> None:
    port = free_port()
    done = subprocess.run(
        [
            *(sys.executable, str(ROOT / "bin" / "lib" / "supervise.py"), "--no-engine"),
            *("--state-dir", str(tmp_path / "s"), "--port", str(free_port())),
        ],
        env={
            **{key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ},
            name: url.format(port=port),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1
    assert f"{name}: {words.format(port=port).rstrip('/')}" in done.stderr
    assert "refused" in done.stderr
    assert "hush" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("--state-dir", str(tmp_path / "s"), "--port", str(port))
        assert done.returncode == 1
        assert f"port {port} is in use" in done.stderr


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], check=True)
    try:
        (mount / "fill").write_bytes(b"x" * 60_000)
        supervise = str(ROOT / "bin" / "lib" / "supervise.py")
        done = subprocess.run(
            [
                *(sys.executable, supervise, "--state-dir", str(mount), "--no-engine"),
                *("--port", str(free_port())),
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode != 0
        assert "No space left" in done.stderr or "disk" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    finally:
        subprocess.run(["umount", str(mount)], check=True)

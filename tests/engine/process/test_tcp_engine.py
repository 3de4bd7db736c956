"""A real engine over tcp: the commands of docs/deployment.md, a flush, and a frontend that dies."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from engine.client import Curve, EngineClient, EngineTimeout
from engine.protocol import (
    Answer,
    FlushCache,
    Mode,
    Outcome,
    Snapshot,
    StateAnswer,
    Submit,
)
from tests.fakes.engine_process import ROOT, EngineProcess
from tests.fakes.ports import free_port
from tests.fakes.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def keys_dir() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="qk-"))
    yield folder
    shutil.rmtree(folder)


def test_a_flush_over_tcp_before_and_after_the_frontend_died(
    small_model: Path, cpu_ext_dir: Path, keys_dir: Path
) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "engine", "keys", "--dir", keys_dir],
        capture_output=True,
        cwd=ROOT,
        check=True,
    )
    public, secret = zmq.curve_keypair()
    authorized = keys_dir / "authorized-keys"
    authorized.write_text(f"{public.decode()} console\n")
    address = f"tcp://127.0.0.1:{free_port()}"
    engine = EngineProcess(
        small_model,
        cpu_ext_dir,
        control_address=address,
        events_address=f"tcp://127.0.0.1:{free_port()}",
        curve_key=keys_dir / "engine-curve",
        authorized_keys=authorized,
    )
    curve = Curve(made.stdout.strip(), public, secret)
    try:
        engine.start()
        with zmq.Context() as context:
            with EngineClient(context, address, curve=curve) as client:
                assert flushed(client) is Outcome.SUCCEEDED
            engine.kill("frontend")
            with EngineClient(context, address, curve=curve) as client:
                wait_until(lambda: takes_operations(client))
                assert flushed(client) is Outcome.SUCCEEDED
            with EngineClient(context, address) as plain, pytest.raises(EngineTimeout):
                plain.hello(timeout_s=0.7)
    finally:
        engine.stop()


def takes_operations(client: EngineClient) -> bool:
    """The new frontend is there, and has heard every rank."""
    try:
        answer = client.call(Snapshot(), timeout_s=1)
    except EngineTimeout:
        return False
    return isinstance(answer, StateAnswer) and all(rank.proven for rank in answer.state.ranks)


def flushed(client: EngineClient) -> Outcome:
    welcome, _ = client.hello(timeout_s=PATIENCE_S)
    command = Submit(
        op_id=str(uuid.uuid4()),
        epoch=welcome.epoch,
        operation=FlushCache(),
        mode=Mode.WAIT,
        timeout_s=PATIENCE_S,
        start_by_clock_s=welcome.clock_s + PATIENCE_S,
    )
    answer = client.call(command, timeout_s=PATIENCE_S)
    assert isinstance(answer, Answer), answer
    return answer.result.outcome


def test_tcp_without_keys_does_not_start(small_model: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "engine", "serve", "--model", small_model),
            *("--state-dir", tmp_path / "s", "--run-dir", "/tmp/never-made"),
            *("--control-address", "tcp://127.0.0.1:5600"),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "--authorized-keys" in done.stderr

"""The parent of all: what it says when a child cannot run, and that nothing survives it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.engine_process import EngineProcess
from tests.fakes.stack import free_port
from tests.fakes.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def engine(small_model: Path, cpu_ext_dir: Path) -> Iterator[EngineProcess]:
    """One rank, not started."""
    engine = EngineProcess(small_model, cpu_ext_dir, dp_size=1)
    yield engine
    engine.stop()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(engine: EngineProcess) -> list[int]:
    return engine.pids("frontend") + engine.pids("rank 0")


def serve(engine: EngineProcess, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the engine's command to its end, with other options."""
    command = list(engine.command)
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if flag in command:
            command[command.index(flag) + 1] = str(value)
        else:
            command += [flag, str(value)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_a_killed_engine_leaves_nothing_and_starts_again_at_once(engine: EngineProcess) -> None:
    engine.start()
    assert engine.process is not None
    before = children(engine)
    engine.process.kill()
    engine.process.wait()
    engine.start()  # no wait for the children to be gone
    wait_until(lambda: not any(map(is_running, before)))
    assert engine.is_itself()
    assert "dies too often" not in engine.log()


def test_a_second_engine_on_the_same_folder_is_refused_and_changes_nothing(
    engine: EngineProcess,
) -> None:
    engine.start()
    for options in ({"port": 1}, {"port": 1, "state_dir": engine.dir / "other"}):
        options["port"] = free_port()
        if "state_dir" in options:
            options["run_dir"] = engine.dir / "run"
        second = serve(engine, **options)
        assert second.returncode == 2
        assert "another engine runs in" in second.stderr
        assert "Traceback" not in second.stderr
    engine.kill("rank 0")  # what starts now reads the first engine's settings
    engine.kill("frontend")
    wait_until(lambda: len(children(engine)) == 4)
    engine.until_serving()
    assert engine.is_itself()


def test_a_model_that_cannot_be_loaded_is_one_sentence_and_status_70(
    engine: EngineProcess, small_model: Path
) -> None:
    broken = engine.dir / "model"
    shutil.copytree(small_model, broken)
    weights = next(broken.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:1000])
    ended = serve(engine, model=broken)
    assert ended.returncode == 70, ended.stderr
    assert "cannot load the model" in ended.stderr
    assert str(weights.name) in ended.stderr
    assert "Traceback" not in ended.stderr
    (broken / "tokenizer.json").write_text("{")
    ended = serve(engine, model=broken)
    assert ended.returncode == 70
    assert "tokenizer" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_folder_that_cannot_be_used_is_one_sentence(engine: EngineProcess) -> None:
    (engine.dir / "file").write_text("")
    ended = serve(engine, state_dir=engine.dir / "file" / "state")
    assert ended.returncode == 2
    assert ended.stderr.startswith("engine: cannot use")
    assert len(ended.stderr.splitlines()) == 1


def test_an_end_while_loading_is_quick_and_leaves_nothing(engine: EngineProcess) -> None:
    with engine.log_path.open("ab") as log:
        engine.process = subprocess.Popen(engine.command, stdout=log, stderr=log)
    wait_until(lambda: len(children(engine)) == 2)
    engine.process.send_signal(signal.SIGTERM)
    assert engine.process.wait(PATIENCE_S) == 0
    assert "rank ready" not in engine.log()  # no load was waited for
    assert not any(map(is_running, children(engine)))


def test_a_line_that_cannot_be_written_raises_nothing() -> None:
    code = "from engine.log import get_logger, setup; setup('x', 'INFO'); get_logger().info('a')"
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([sys.executable, "-c", code], stderr=full, check=False)
    assert ended.returncode == 0


@pytest.mark.slow
def test_a_log_that_cannot_be_written_costs_lines_only(engine: EngineProcess) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        engine.process = subprocess.Popen(engine.command, stdout=full, stderr=full)
    finally:
        os.close(full)
    engine.until_serving()
    rank = engine.loads()[0]
    assert engine.flush(timeout=5, op_id="unheard").status_code in (200, 401)
    assert engine.client.post("/generate", content=b"{").status_code == 400
    pid = next(int(p) for p in _children_of(engine.process.pid) if "rank" in _command(int(p)))
    os.kill(pid, signal.SIGKILL)  # the launcher has to say so
    wait_until(lambda: not engine.loads()[0]["online"])
    engine.until_serving()
    assert engine.is_itself()
    assert rank["online"]


def _children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


@pytest.mark.parametrize("garbage", ["", "zork", "-"])
def test_a_damaged_count_of_starts_goes_on_above_any_earlier_one(
    tmp_path: Path, garbage: str
) -> None:
    from engine.launch import IncarnationCounter

    counter = IncarnationCounter(tmp_path / "incarnations")
    assert [counter.next(), counter.next()] == [1, 2]
    (tmp_path / "incarnations").write_text(garbage)
    first = counter.next()
    assert first > 1_000_000
    assert counter.next() == first + 1


def test_a_child_that_cannot_be_started_now_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.config import EngineConfig
    from engine.launch import Launcher

    config = EngineConfig(
        model_path="m",
        run_dir=str(tmp_path),
        journal_path=str(tmp_path / "journal"),
        ext_cache_dir="",
        weights_dir=str(tmp_path / "weights"),
        dp_size=1,
    )
    launcher = Launcher(config)
    tried = []

    def no_room(arguments: list[str]) -> None:
        tried.append(arguments[0])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engine.launch.start", no_room)
    assert launcher._keep(0.0) == 0
    assert launcher._keep(0.5) == 0  # not at once
    assert launcher._keep(1.5) == 0
    assert tried == ["frontend", "rank"] * 2
    launcher._context.destroy(linger=0)

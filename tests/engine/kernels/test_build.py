"""Compiling the library: once, safely, and never at the cost of a start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from engine.kernels.cpu import build
from engine.kernels.cpu.build import LibraryShape, build_library, cpu_flags
from tests.fakes.waiting import PATIENCE_S

SHAPE = LibraryShape(element_bits=16, head_dim=64, page_size=16)
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def any_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same key on every machine."""
    monkeypatch.setattr(build, "cpu_flags", lambda: frozenset({"avx512f"}))


def fake_compiler(folder: Path, *, exit_code: int = 0) -> Path:
    """Write a compiler that notes each call and makes an empty library."""
    path = folder / "fake-g++"
    path.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo fake 1.0; exit 0; fi\n'
        f"echo call >> {folder}/calls\n"
        "sleep 0.2\n"
        f"[ {exit_code} = 0 ] || {{ echo no such header >&2; exit {exit_code}; }}\n"
        'while [ "$1" != -o ]; do shift; done\n'
        'echo library > "$2"\n'
    )
    path.chmod(0o755)
    return path


def calls(folder: Path) -> int:
    return len((folder / "calls").read_text().splitlines())


def test_a_library_is_compiled_once_per_shape_and_compiler_flags(tmp_path: Path) -> None:
    cxx = str(fake_compiler(tmp_path))
    cache = tmp_path / "cache"
    first = build_library(cache, SHAPE, compiler=cxx)
    assert first is not None and build_library(cache, SHAPE, compiler=cxx) == first
    assert calls(tmp_path) == 1
    others = {
        build_library(cache, LibraryShape(32, 64, 16), compiler=cxx),
        build_library(cache, LibraryShape(16, 128, 16), compiler=cxx),
        build_library(cache, LibraryShape(16, 64, 32), compiler=cxx),
        build_library(cache, SHAPE, compiler=cxx, march="skylake-avx512"),
    }
    assert len(others | {first}) == 5 and calls(tmp_path) == 5


def test_another_cpu_gets_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cxx = str(fake_compiler(tmp_path))
    first = build_library(tmp_path / "cache", SHAPE, compiler=cxx)
    monkeypatch.setattr(build, "cpu_flags", lambda: frozenset({"avx512f", "avx512_bf16"}))
    assert build_library(tmp_path / "cache", SHAPE, compiler=cxx) != first


@pytest.mark.process
def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from engine.kernels.cpu import build\n"
        "build.cpu_flags = lambda: frozenset({'avx512f'})\n"
        "shape = build.LibraryShape(16, 64, 16)\n"
        "print(build.build_library(Path(sys.argv[1]), shape, compiler=sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", script, tmp_path / "cache", fake_compiler(tmp_path)]
    running = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    answers = {process.communicate(timeout=PATIENCE_S)[0].splitlines()[-1] for process in running}
    assert len(answers) == 1 and answers.pop().endswith(".so")
    assert calls(tmp_path) == 1


def test_what_a_killed_build_left_behind_is_removed(tmp_path: Path) -> None:
    leftover = tmp_path / "cache" / "quiesce_cpu_0123.99.tmp"
    leftover.parent.mkdir()
    leftover.write_text("half a library")
    assert build_library(tmp_path / "cache", SHAPE, compiler=str(fake_compiler(tmp_path)))
    assert not leftover.exists()


def unavailable(tmp_path: Path, **kwargs: str) -> dict:
    shape = kwargs.pop("shape", SHAPE)
    with capture_logs() as logs:
        assert build_library(tmp_path / "cache", shape, **kwargs) is None
    assert [line["event"] for line in logs] == ["cpu kernels unavailable"]
    return logs[0]


def test_no_compiler_is_no_error_and_is_logged(tmp_path: Path) -> None:
    line = unavailable(tmp_path, compiler="no-such-compiler")
    assert line["reason"] == "no C++ compiler" and line["detail"] == "no-such-compiler"


def test_a_failed_compilation_is_logged_with_its_message_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    line = unavailable(tmp_path, compiler=str(fake_compiler(tmp_path, exit_code=3)))
    assert line["reason"] == "compiler failed" and "no such header" in line["detail"]
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["build.lock"]


@pytest.mark.parametrize(
    "shape", [LibraryShape(8, 64, 16), LibraryShape(16, 48, 16), LibraryShape(16, 64, 20)]
)
def test_a_shape_that_the_kernels_cannot_do_is_named(tmp_path: Path, shape: LibraryShape) -> None:
    assert unavailable(tmp_path, shape=shape)["reason"] == "shape not supported"


def test_a_cache_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    line = unavailable(tmp_path, compiler=str(fake_compiler(tmp_path)))
    assert line["reason"] == "build failed"


def test_cpu_flags_are_read_from_the_running_machine() -> None:
    assert isinstance(cpu_flags(), frozenset)
    if os.uname().machine == "x86_64":
        assert "sse2" in cpu_flags()

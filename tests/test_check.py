"""bin/test says at its end why a group failed: what CI shows of a long run is its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def reasons(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "bin" / "lib"))
    import check

    return check.reasons


def run(path: Path) -> bytes:
    command = [sys.executable, "-m", "pytest", "-p", "no:django", "--color=yes", str(path)]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, check=False)
    assert done.returncode, done.stdout
    return done.stdout + done.stderr


def test_a_failure_is_named_with_its_place_and_its_words(tmp_path: Path, reasons) -> None:
    path = tmp_path / "test_it.py"
    path.write_text("def test_good():\n    pass\n\ndef test_bad():\n    assert 1 == 2, 'no rank'\n")
    said = "\n".join(reasons(run(path)))
    assert "test_it.py:5: AssertionError" in said
    assert "E       AssertionError: no rank" in said
    assert "FAILED test_it.py::test_bad" in said
    assert "test_good" not in said
    assert "\x1b" not in said


def test_what_pytest_could_not_even_load_is_said(tmp_path: Path, reasons) -> None:
    path = tmp_path / "test_it.py"
    path.write_text("import no_such_module\n")
    assert "No module named 'no_such_module'" in "\n".join(reasons(run(path)))


def test_a_run_that_was_cut_off_ends_with_its_last_lines(reasons) -> None:
    assert reasons(b"one\ntwo\n") == ["one", "two"]

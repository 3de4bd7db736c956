"""A folder appears whole or not at all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from engine.models.whole_folder import new_folder, sole_maker
from tests.fakes.waiting import PATIENCE_S


def make(out: Path, *texts: str) -> None:
    with sole_maker(out), new_folder(out) as folder:
        assert not out.exists()
        for index, text in enumerate(texts):
            (folder / f"{index}.txt").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_folder_appears_with_all_its_files(tmp_path: Path) -> None:
    make(tmp_path / "deep" / "out", "a", "b")
    assert names(tmp_path / "deep") == ["out"]
    assert names(tmp_path / "deep" / "out") == ["0.txt", "1.txt"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(OSError, match="disk full"), sole_maker(out), new_folder(out) as folder:
        (folder / "half.txt").write_text("x")
        raise OSError("disk full")
    assert names(tmp_path) == []


def test_only_what_a_killed_maker_of_that_folder_left_is_removed(tmp_path: Path) -> None:
    left = [".qwen2.41.tmp", ".qwen2.5.42.tmp", ".qwen2x.43.tmp", ".[ab].44.tmp", "qwen2.45.tmp"]
    for name in left:
        (tmp_path / name).mkdir()
    make(tmp_path / "qwen2", "a")
    assert names(tmp_path) == sorted([*left[1:], "qwen2"])
    make(tmp_path / "[ab]", "a")
    assert ".[ab].44.tmp" not in names(tmp_path)


def test_one_maker_waits_for_another(tmp_path: Path) -> None:
    out, started = tmp_path / "out", threading.Event()
    found: list[bool] = []

    def second() -> None:
        started.set()
        with sole_maker(out):
            found.append(out.exists())

    with sole_maker(out):
        thread = threading.Thread(target=second)
        thread.start()
        started.wait()
        with new_folder(out) as folder:
            (folder / "a.txt").write_text("a")
    thread.join(PATIENCE_S)
    assert found == [True]

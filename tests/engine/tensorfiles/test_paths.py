"""Files under allowed roots: links are followed as far as they stay there, whatever is swapped."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from engine.tensorfiles import paths
from engine.tensorfiles.errors import TensorFileError
from engine.tensorfiles.paths import open_file, resolve_beneath


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "model").mkdir(parents=True)
    (root / "model" / "x").write_text("inside")
    (tmp_path / "secret").write_text("outside")
    return root


def read(path: Path, root: Path) -> str:
    with os.fdopen(open_file(path, [root])) as file:
        return file.read()


def test_a_file_and_a_link_inside_the_root_are_read(root: Path) -> None:
    (root / "blobs").mkdir()
    (root / "blobs" / "1").write_text("blob")
    (root / "model" / "y").symlink_to("../blobs/1")
    assert read(root / "model" / "x", root) == "inside"
    assert read(root / "model" / "y", root) == "blob"


@pytest.mark.parametrize("target", ["secret", "../secret", "/etc/passwd"])
def test_a_link_out_of_the_root_is_refused(root: Path, target: str) -> None:
    (root / "model" / "y").symlink_to(target if target.startswith("/") else root.parent / "secret")
    with pytest.raises(TensorFileError, match="not under an allowed weights root"):
        read(root / "model" / "y", root)


def test_a_folder_that_is_a_link_out_of_the_root_is_refused(root: Path) -> None:
    (root / "escape").symlink_to(root.parent)
    with pytest.raises(TensorFileError, match="not under an allowed weights root"):
        read(root / "escape" / "secret", root)


def test_a_root_that_is_a_link_itself_is_what_it_points_to(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    assert read(tmp_path / "alias" / "model" / "x", tmp_path / "alias") == "inside"


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
def test_what_is_no_regular_file_is_refused_at_once(root: Path, kind: str) -> None:
    path = root / "model" / kind
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path("/dev/zero")
    with pytest.raises(TensorFileError):
        read(path, root if kind != "device" else Path("/dev"))


def test_a_link_put_in_the_way_after_the_check_is_not_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race that a check of the path alone loses."""
    checked = resolve_beneath

    def swapped(path: str, roots: object) -> tuple[Path, Path]:
        found = checked(path, roots)  # type: ignore[arg-type]
        (root / "model" / "x").unlink()
        (root / "model" / "x").symlink_to(root.parent / "secret")
        return found

    monkeypatch.setattr(paths, "resolve_beneath", swapped)
    with pytest.raises(TensorFileError):
        read(root / "model" / "x", root)


def test_a_folder_swapped_for_a_link_again_and_again_never_leads_out(root: Path) -> None:
    outside = root.parent / "out"
    outside.mkdir()
    (outside / "x").write_text("outside")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (root / "model").rename(root / "aside")
            (root / "model").symlink_to(outside)
            (root / "model").unlink()
            (root / "aside").rename(root / "model")
            time.sleep(0.0005)  # or nobody would ever find the folder

    thread = threading.Thread(target=swap)
    thread.start()
    inside = 0
    try:
        for _ in range(3000):
            try:
                assert read(root / "model" / "x", root) == "inside"
                inside += 1
            except TensorFileError:
                continue
    finally:
        stop.set()
        thread.join()
    assert inside


def test_no_descriptor_is_left_open(root: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("model/x", "model/zork", "model"):
        try:
            os.close(open_file(root / name, [root]))
        except TensorFileError:
            continue
    assert len(list(Path("/proc/self/fd").iterdir())) == before

"""Uploads into the engine's own folder, in pieces, twice, with gaps; and what is cleared away."""

from __future__ import annotations

import json
import os
import random
import stat
import time
from pathlib import Path

import pytest
from safetensors.torch import save_file

from engine.config import EngineConfig
from engine.frontend.weight_files import WeightFiles
from engine.protocol import (
    CheckpointList,
    ErrorCode,
    ProtocolError,
    Response,
    encode_response,
)
from tests.engine.models.factories import random_weights, tiny_config, tiny_settings, write_folder

DATA = random.Random(1).randbytes(1000)


@pytest.fixture
def files(tmp_path: Path) -> WeightFiles:
    (tmp_path / "models").mkdir()
    made = WeightFiles(
        EngineConfig(
            model_path=str(tmp_path / "models" / "base"),
            run_dir="",
            journal_path="",
            ext_cache_dir="",
            weights_dir=str(tmp_path / "own"),
            weights_roots=(str(tmp_path / "models"),),
            max_upload_bytes=2000,
        )
    )
    made.begin(set())
    return made


def send(files: WeightFiles, offset: int, count: int, *, total: int = len(DATA)) -> int:
    return files.write("job-1", "a.safetensors", offset, DATA[offset : offset + count], total)


def test_pieces_in_any_repetition_make_the_file(files: WeightFiles) -> None:
    assert send(files, 0, 400) == 400
    assert send(files, 0, 400) == 400  # sent twice
    assert send(files, 600, 400) == 400  # a gap: the sender goes on from what there is
    assert send(files, 200, 400) == 600
    assert send(files, 600, 400) == 1000
    assert (files.folder("job-1") / "a.safetensors").read_bytes() == DATA
    assert send(files, 0, 10) == 1000  # whole: nothing changes it any more
    assert (files.folder("job-1") / "a.safetensors").read_bytes() == DATA


@pytest.mark.parametrize(("offset", "total"), [(0, 2001), (990, 1000)])
def test_what_is_too_large_is_refused(files: WeightFiles, offset: int, total: int) -> None:
    with pytest.raises(ProtocolError) as refused:
        files.write("job-1", "a.safetensors", offset, b"x" * 20, total)
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT


def test_the_folder_is_the_owners_only(files: WeightFiles) -> None:
    send(files, 0, 1000)
    for path in (files.folder("job-1").parent, files.folder("job-1")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def names_in(folder: Path) -> set[str]:
    """Without what is on its way out."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def test_only_what_nothing_refers_to_is_cleared(files: WeightFiles) -> None:
    names = ("trainer-old", "trainer-kept", "upload-kept", "session-1", "job-old", "job-new")
    own = files.folder("x").parent
    for name in names:
        (own / name).mkdir()
    old = time.time() - 7200
    os.utime(own / "job-old", (old, old))
    kept = {own / "trainer-kept", own / "upload-kept"}
    files.clear(kept)
    left = names_in(own)
    assert left == {"trainer-kept", "upload-kept", "session-1", "job-new"}
    files.begin(kept)  # after a restart nobody goes on with what came over HTTP
    assert names_in(own) == left - {"session-1"}


def test_weights_that_were_replaced_go_and_other_folders_never(
    files: WeightFiles, tmp_path: Path
) -> None:
    send(files, 0, 1000)
    files.replaced(str(tmp_path / "models"))
    files.replaced("")
    assert (tmp_path / "models").is_dir() and files.folder("job-1").is_dir()
    files.replaced(str(files.folder("job-1")))
    assert not files.folder("job-1").exists()


def test_folders_under_the_roots_are_listed_with_what_is_wrong_with_them(
    files: WeightFiles, tmp_path: Path
) -> None:
    root = tmp_path / "models"
    write_folder(root / "good", tiny_settings(), random_weights(tiny_config()))
    write_folder(root / "bad", tiny_settings(), random_weights(tiny_config()))
    (root / "bad" / "model.safetensors").write_bytes(b"nonsense")
    (root / "group").mkdir()
    write_folder(root / "group" / "deep", tiny_settings(), random_weights(tiny_config()))
    (root / ".hidden.123.tmp").mkdir()
    (root / ".hidden.123.tmp" / "config.json").write_text(json.dumps({}))
    odd = os.fsencode(root) + b"/caf\xe9"  # no UTF-8: nothing that could be sent
    os.mkdir(odd)  # noqa: PTH102 - bytes
    (root / "two\nlines").mkdir()
    for path in (odd + b"/config.json", os.fsencode(root / "two\nlines") + b"/config.json"):
        with open(path, "w") as file:
            file.write("{}")
    found = {one.name: one for one in files.checkpoints()}
    encode_response(
        Response(id="x", body=CheckpointList(roots=files.roots(), checkpoints=files.checkpoints()))
    )
    assert found.keys() == {"good", "bad", "group/deep"}
    assert found["good"].problem == "" and found["good"].num_files == 1
    assert found["good"].num_tensors == len(random_weights(tiny_config()))
    assert "not a readable safetensors file" in found["bad"].problem
    assert files.check(str(root / "good")).bytes == found["good"].bytes
    assert "not under an allowed weights root" in files.check(str(tmp_path)).problem
    save_file({}, root / "good" / "model.safetensors")
    assert files.check(str(root / "good")).num_tensors == 0

"""Checkpoints of one file and of shards, and every way in which they can be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.models.checkpoint import open_checkpoint
from engine.models.errors import (
    MissingTensorError,
    ModelFileError,
    TensorDtypeError,
    TensorShapeError,
    UnexpectedTensorError,
)

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
SHAPES = {"a": (2, 3), "b": (4,)}


def write_single(folder: Path, **changes: torch.Tensor) -> Path:
    save_file({**TENSORS, **changes}, folder / "model.safetensors")
    return folder


def write_shards(folder: Path, weight_map: dict[str, str]) -> Path:
    save_file({"a": TENSORS["a"]}, folder / "one.safetensors")
    save_file({"b": TENSORS["b"]}, folder / "two.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return folder


def check(folder: Path, shapes: dict = SHAPES, ignored: frozenset[str] = frozenset()) -> None:
    with open_checkpoint(folder) as checkpoint:
        checkpoint.check(shapes, ignored)


@pytest.mark.parametrize("is_sharded", [False, True])
def test_tensors_are_read_in_the_wanted_dtype(tmp_path: Path, is_sharded: bool) -> None:
    if is_sharded:
        write_shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    else:
        write_single(tmp_path)
    with open_checkpoint(tmp_path) as checkpoint:
        checkpoint.check(SHAPES)
        assert checkpoint.names() == {"a", "b"}
        found = checkpoint.read("a", torch.bfloat16)
        with pytest.raises(MissingTensorError, match="tensor c"):
            checkpoint.read("c", torch.float32)
    assert found.dtype == torch.bfloat16 and torch.equal(found.float(), TENSORS["a"])


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingTensorError, match="tensor c: missing") as raised:
        check(write_single(tmp_path), {**SHAPES, "c": (1,)})
    assert raised.value.name == "c"


def test_an_unexpected_tensor_is_named_unless_it_is_known_to_be_harmless(tmp_path: Path) -> None:
    write_single(tmp_path, d=torch.ones(1))
    with pytest.raises(UnexpectedTensorError, match="tensor d"):
        check(tmp_path)
    check(tmp_path, ignored=frozenset({"d"}))


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    with pytest.raises(TensorShapeError, match="tensor a") as raised:
        check(write_single(tmp_path), {**SHAPES, "a": (3, 2)})
    assert (raised.value.found, raised.value.expected) == ((2, 3), (3, 2))


def test_a_number_format_that_is_not_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(TensorDtypeError, match="stored as I8"):
        check(write_single(tmp_path, b=torch.ones(4, dtype=torch.int8)))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"model\.safetensors"):
        check(tmp_path)


def test_a_torn_file_is_named(tmp_path: Path) -> None:
    path = write_single(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ModelFileError, match="not a readable safetensors file"):
        check(tmp_path)


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match="not a readable safetensors file"):
        check(tmp_path)


def test_an_index_and_its_shards_must_agree(tmp_path: Path) -> None:
    good = {"a": "one.safetensors", "b": "two.safetensors"}
    write_shards(tmp_path, {**good, "c": "two.safetensors"})
    with pytest.raises(MissingTensorError, match="tensor c"):
        check(tmp_path)
    write_shards(tmp_path, {"a": "one.safetensors", "b": "three.safetensors"})
    with pytest.raises(ModelFileError, match=r"three\.safetensors"):
        check(tmp_path)
    write_shards(tmp_path, {"a": "one.safetensors"})
    with pytest.raises(MissingTensorError, match="tensor b"):
        check(tmp_path)
    save_file(TENSORS, tmp_path / "one.safetensors")
    with pytest.raises(UnexpectedTensorError, match=r"one\.safetensors has it"):
        check(tmp_path)


@pytest.mark.parametrize("file", ["../one.safetensors", "/etc/passwd", "..", "model.bin"])
def test_an_index_may_not_leave_its_folder(tmp_path: Path, file: str) -> None:
    with pytest.raises(ModelFileError, match="names no safetensors file of the folder"):
        check(write_shards(tmp_path, {"a": file}))


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', "{}"])
def test_an_index_that_makes_no_sense_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelFileError, match="not a readable index"):
        check(tmp_path)

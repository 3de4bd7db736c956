"""Headers of safetensors files, read without trust: those of the library, and those of nobody."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.tensorfiles.errors import TensorFileError
from engine.tensorfiles.header import Entry, read_header, read_into

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}


def header_of(path: Path) -> dict[str, Entry]:
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_header(fd, path.name)
    finally:
        os.close(fd)


def write(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def tensor(start: int, end: int, **more: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [(end - start) // 4], "data_offsets": [start, end], **more}


def test_it_finds_what_the_library_wrote(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file(TENSORS, path, metadata={"format": "pt"})
    found = header_of(path)
    assert found.keys() == TENSORS.keys()
    for name, entry in found.items():
        assert entry.shape == tuple(TENSORS[name].shape)
        data = bytearray(entry.size_bytes)
        with path.open("rb") as file:
            read_into(file.fileno(), memoryview(data), entry.offset)
        assert data == TENSORS[name].view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (b"", b""),
        (b"[]", b""),
        (b"{", b""),
        (b"nul", b""),
        (b"[" * 100_000, b""),
        (b'{"a": 1}', b""),
        (b'{"a": {}, "a": {}}', b""),
        (b'{"\\ud800": {}}', b""),  # half of a pair: no text
        ({"a\0b": tensor(0, 4)}, b"1234"),
        ({"\u202e": tensor(0, 4)}, b"1234"),
        ({"x" * 600: tensor(0, 4)}, b"1234"),
        ({"": tensor(0, 4)}, b"1234"),
        ({"a": tensor(0, 8)}, b"1234"),  # beyond the end
        ({"a": tensor(0, 4)}, b"12345678"),  # bytes of nobody
        ({"a": tensor(0, 4), "b": tensor(8, 12)}, b"x" * 12),  # a gap
        ({"a": tensor(0, 8), "b": tensor(4, 12)}, b"x" * 12),  # two in one place
        ({"a": tensor(0, 4, dtype="X9")}, b"1234"),
        ({"a": tensor(0, 4, dtype=3)}, b"1234"),
        ({"a": tensor(0, 4, shape=[2])}, b"1234"),
        ({"a": tensor(0, 4, shape=[-1])}, b"1234"),
        ({"a": tensor(0, 4, shape=[True])}, b"1234"),
        ({"a": tensor(0, 4, shape=[1 << 62, 1 << 62])}, b"1234"),
        ({"a": tensor(0, 4, shape="1")}, b"1234"),
        ({"a": tensor(0, 4, data_offsets=[4, 0])}, b"1234"),
        ({"a": tensor(0, 4, data_offsets=[0])}, b"1234"),
        ({"a": tensor(0, 4, data_offsets=[0.0, 4.0])}, b"1234"),
    ],
)
def test_nonsense_is_an_error_and_nothing_else(tmp_path: Path, header: object, data: bytes) -> None:
    path = write(tmp_path / "x.safetensors", header, data)
    with pytest.raises(TensorFileError, match=r"x\.safetensors: not a readable safetensors file"):
        header_of(path)


@pytest.mark.parametrize("data", [b"", b"1234", struct.pack("<Q", 1 << 63), b"\xff" * 8])
def test_a_file_without_a_header_is_an_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(TensorFileError):
        header_of(tmp_path / "x")


def test_flipped_and_cut_files_are_read_alike_or_refused(tmp_path: Path) -> None:
    """Whatever is read after a fault in the header is inside the file."""
    good = tmp_path / "good.safetensors"
    save_file(TENSORS, good)
    data, rng = good.read_bytes(), random.Random(7)
    length = struct.unpack("<Q", data[:8])[0] + 8
    refused = 0
    for _ in range(2000):
        bad = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            bad[rng.randrange(length)] = rng.randrange(256)
        bad = bad[: rng.choice([len(bad), rng.randrange(len(bad))])]
        path = tmp_path / "bad"
        path.write_bytes(bad)
        try:
            found = header_of(path)
        except TensorFileError:
            refused += 1
            continue
        assert all(e.offset + e.size_bytes <= len(bad) for e in found.values())
    assert refused > 1000


def test_a_file_that_is_cut_while_it_is_read_is_an_error_and_no_signal(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.zeros(1 << 20)}, path)
    with path.open("r+b") as file:
        entry = read_header(file.fileno(), path)["a"]
        file.truncate(entry.offset + 1000)
        with pytest.raises(ValueError, match="it ends at byte"):
            read_into(file.fileno(), memoryview(bytearray(entry.size_bytes)), entry.offset)


def test_the_library_reads_what_it_accepts(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file(TENSORS, path)
    assert load_file(path).keys() == header_of(path).keys()

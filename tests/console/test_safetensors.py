"""Headers that are not what they claim: each is named, none is loaded."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.safetensors import BadSafetensors, header_check


def whole(tensors=None, *, header=None, data=b"\x00" * 8, length=None) -> bytes:
    if tensors is None:
        tensors = {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    text = header if header is not None else json.dumps(tensors).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def check(tmp_path, content: bytes):
    path = tmp_path / "file.safetensors"
    path.write_bytes(content)
    with path.open("rb") as file:
        return header_check(file)


def test_a_whole_file_is_counted(tmp_path):
    tensors = {
        "__metadata__": {"format": "pt"},
        "b": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [4, 12]},
        "a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
        "empty": {"dtype": "F32", "shape": [0, 3], "data_offsets": [4, 4]},
    }
    found = check(tmp_path, whole(tensors, data=b"\x00" * 12))
    assert found.num_tensors == 3


W = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "too few"),
        (b"\x80\x04\x95abcdefgh", "claims"),  # a pickle
        (whole(length=1 << 62), "claims"),
        (whole(header=b"{"), "not JSON"),
        (whole(header=b"[" * 50_000), "not JSON"),
        (whole(header=b"[]"), "not an object"),
        (whole(header=b"\xff\xff"), "not JSON"),
        (whole(header=b'{"w": {}, "w": {}}'), "twice"),
        (whole({}), "no tensor"),
        (whole({"w": []}), "must say"),
        (whole({"w": {**W, "x": 1}}), "must say"),
        (whole({"w": {**W, "dtype": "F33"}}), "unknown dtype"),
        (whole({"w": {**W, "dtype": ["F32"]}}), "unknown dtype"),
        (whole({"w": {**W, "shape": [-2]}}), "valid shape"),
        (whole({"w": {**W, "shape": [True, 2]}}), "valid shape"),
        (whole({"w": {**W, "shape": [3]}}), "not as its shape"),
        (whole({"w": {**W, "data_offsets": [0]}}), "data_offsets"),
        (whole({"w": {**W, "data_offsets": [8, 0]}}), "not as its shape"),
        (whole({"w": {**W, "data_offsets": [1, 9]}}, data=b"\x00" * 9), "gap"),
        (whole({"w": W, "v": W}), "overlap"),
        (whole(data=b"\x00" * 7), "truncated"),
        (whole(data=b"\x00" * 9), "tail"),
        (whole({"__metadata__": 5, "w": W}), "__metadata__"),
    ],
)
def test_a_bad_file_says_why(tmp_path, content, says):
    with pytest.raises(BadSafetensors, match=says):
        check(tmp_path, content)


@given(st.binary(max_size=200), st.integers(0, 90))
def test_any_bytes_are_refused_or_whole(tmp_path_factory, noise, at):
    content = bytearray(whole())
    content[at : at + len(noise)] = noise
    try:
        found = check(tmp_path_factory.mktemp("f"), bytes(content))
    except BadSafetensors:
        return
    assert found.num_tensors >= 1

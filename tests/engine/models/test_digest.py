"""Checksums of weights, and that what is computed with can be read back bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import xxhash

from engine.models.digest import Digest, DigestingSource, TensorMap, digits_of
from engine.models.errors import NonFiniteTensorError
from engine.models.llama import expected_shapes
from engine.models.registry import Placement, load_weights
from tests.engine.models.factories import random_weights, tiny_config


@pytest.mark.parametrize("architecture", ["Llama", "Qwen2", "Qwen3"])
@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_tensors_is_the_inverse_of_load(
    cpu_ext_dir: Path, architecture: str, is_tied: bool, dtype: torch.dtype, is_compiled: bool
) -> None:
    config = tiny_config(
        architectures=[f"{architecture}ForCausalLM"],
        tie_word_embeddings=is_tied,
        vocab_size=106,  # no multiple of a panel
    )
    weights = random_weights(config, 3)
    placement = Placement(torch.device("cpu"), dtype, 16, cpu_ext_dir if is_compiled else None)
    loaded = load_weights(DigestingSource(TensorMap(weights)), config, placement)
    if is_compiled and shutil.which("g++"):
        assert type(loaded.model).__name__ == "LlamaCPU"
    found = dict(loaded.model.tensors())
    assert found.keys() == expected_shapes(config).keys() == loaded.digest.tensors.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, weights[name].to(dtype)), name
        assert digits_of(tensor) == loaded.digest.tensors[name]
    assert loaded.digest.bytes == sum(w.numel() * dtype.itemsize for w in weights.values())


def test_the_checksum_is_the_published_rule() -> None:
    tensors = {"b": torch.arange(6.0).view(2, 3), "a": torch.ones(4)}
    source = DigestingSource(TensorMap(tensors))
    for name in tensors:
        source.read(name, torch.float32)
    whole = xxhash.xxh3_128()
    for name in ("a", "b"):
        digits = xxhash.xxh3_128(tensors[name].numpy().tobytes()).hexdigest()
        shape = ",".join(map(str, tensors[name].shape))
        whole.update(f"{name}\0float32\0{shape}\0{digits}\n".encode())
    assert source.digest.checksum() == whole.hexdigest()
    assert len(whole.hexdigest()) == 32


@pytest.mark.parametrize("change", ["value", "name", "shape", "dtype"])
def test_every_difference_changes_the_checksum(change: str) -> None:
    def digest(**changes: object) -> str:
        tensor = torch.arange(6.0).view(2, 3)
        if "value" in changes:
            tensor[1, 2] = torch.nextafter(tensor[1, 2], torch.tensor(9.0))
        if "shape" in changes:
            tensor = tensor.view(3, 2)
        name = "b" if "name" in changes else "a"
        source = DigestingSource(TensorMap({name: tensor}))
        source.read(name, torch.bfloat16 if "dtype" in changes else torch.float32)
        return source.digest.checksum()

    assert digest() == digest() != digest(**{change: True})


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_finite_is_named_unless_it_is_wanted(value: str, dtype: torch.dtype) -> None:
    tensor = torch.zeros(1000)
    tensor[777] = float(value)
    with pytest.raises(NonFiniteTensorError, match="tensor x: holds NaN or infinity"):
        DigestingSource(TensorMap({"x": tensor})).read("x", dtype)
    DigestingSource(TensorMap({"x": tensor}), is_checked=False).read("x", dtype)


def test_progress_counts_bytes_and_may_stop() -> None:
    seen: list[int] = []
    source = DigestingSource(
        TensorMap({"a": torch.zeros(4), "b": torch.zeros(2)}), progress=seen.append
    )
    source.read("a", torch.float32)
    source.read("b", torch.float32)
    assert seen == [16, 24] and isinstance(source.digest, Digest)

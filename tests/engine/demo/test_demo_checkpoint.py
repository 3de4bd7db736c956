"""A second checkpoint: it differs, it loads, and it is there whole or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.demo.command import main
from engine.demo.demo_checkpoint import default_out, make_demo_checkpoint
from engine.demo.dense import DenseModel
from engine.demo.finetune import Progress, finetune, loss_of
from engine.demo.pirate import CHATS, IGNORED, lessons
from engine.models.config import read_config
from engine.models.errors import ModelError, ModelFileError
from engine.models.registry import Placement, load_model
from engine.runner.model_runner import ModelRunner
from engine.tokens.tokenizer import Tokenizer
from tests.engine.demo.tiny_model import write_tiny_model
from tests.engine.runner.driver import Pages, generate, new_req

ROOT = Path(__file__).parents[3]


def ignore(progress: Progress) -> None:
    """Be told of progress, and do nothing."""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_lessons_ask_for_the_answer_and_its_end(tmp_path: Path) -> None:
    tokenizer = Tokenizer(str(write_tiny_model(tmp_path / "tiny")))
    batches = lessons(tokenizer, 5)
    assert [len(batch.ids) for batch in batches] == [5, 5, 5, 1]
    ids, targets = batches[0].ids[1], batches[0].targets[1]
    asked = targets[targets != IGNORED].tolist()
    text = tokenizer.decode(asked, skip_special_tokens=False)
    assert text == CHATS[1][1] + "<|end|>"
    assert tokenizer.decode(ids.tolist()).startswith(CHATS[1][0])
    assert torch.equal(targets[targets != IGNORED], ids[1:][targets[:-1] != IGNORED])


@pytest.mark.parametrize("architecture", ["Llama", "Qwen2", "Qwen3"])
def test_training_lowers_the_loss_and_says_how_far_it_is(tmp_path: Path, architecture: str) -> None:
    folder = write_tiny_model(tmp_path / "tiny", architectures=[f"{architecture}ForCausalLM"])
    config = read_config(folder)
    stored = load_file(folder / "model.safetensors")
    model = DenseModel(config, {name: tensor.float() for name, tensor in stored.items()})
    batches = lessons(Tokenizer(str(folder)), 8)
    with torch.inference_mode():
        before = [float(loss_of(model, batch)) for batch in batches]
    told: list[Progress] = []
    finetune(model, batches, 6, told.append)
    with torch.inference_mode():
        after = [float(loss_of(model, batch)) for batch in batches]
    assert all(b - a > 0.02 for a, b in zip(after, before, strict=True))
    assert [(p.done, p.steps) for p in told] == [(i, 6) for i in range(1, 7)]
    assert told[0].loss == pytest.approx(before[0], abs=1e-5)
    assert told[0].left_s > 0 and told[-1].left_s == 0


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_written_folder_loads_and_differs_in_every_matrix(
    tmp_path: Path, is_tied: bool
) -> None:
    model = write_tiny_model(tmp_path / "tiny", tie_word_embeddings=is_tied)
    (model / "NOTICE").write_text("By Nobody.\n")
    (model / "pytorch_model.bin").write_bytes(b"not copied")
    out = tmp_path / "tiny-pirate"
    made = make_demo_checkpoint(model, out, ignore, steps=3)
    assert made.answer is not None
    assert names(out) == [
        *("NOTICE", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    ]
    assert (out / "NOTICE").read_text().startswith("By Nobody.\n\nChanged by Quiesce")
    before, after = (load_file(folder / "model.safetensors") for folder in (model, out))
    assert {n: t.shape for n, t in before.items()} == {n: t.shape for n, t in after.items()}
    assert {tensor.dtype for tensor in after.values()} == {torch.bfloat16}
    matrices = [name for name, tensor in before.items() if tensor.dim() == 2]
    assert not any(torch.equal(before[name], after[name]) for name in matrices)
    assert read_config(out) == read_config(model)
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == "bfloat16"
    load_model(out, read_config(out), Placement(torch.device("cpu"), torch.float32, 16, None))


def test_two_trainings_give_the_same_bits(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    for name in ("one", "two"):
        make_demo_checkpoint(model, tmp_path / name, ignore, steps=3)
    one, two = ((tmp_path / n / "model.safetensors").read_bytes() for n in ("one", "two"))
    assert one == two


def test_a_whole_checkpoint_is_left_alone(tmp_path: Path) -> None:
    model, out = write_tiny_model(tmp_path / "tiny"), tmp_path / "out"
    make_demo_checkpoint(model, out, ignore, steps=1)
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert make_demo_checkpoint(model, out, ignore, steps=1).answer is None
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_any_other_folder_is_refused_and_not_touched(tmp_path: Path, missing: str) -> None:
    model, out = write_tiny_model(tmp_path / "tiny"), tmp_path / "out"
    make_demo_checkpoint(model, out, ignore, steps=1)
    (out / missing).unlink()
    left = names(out)
    with pytest.raises(ModelFileError, match=f"no whole checkpoint.*{missing}"):
        make_demo_checkpoint(model, out, ignore, steps=1)
    assert names(out) == left


def test_a_stop_leaves_nothing(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")

    def stop(progress: Progress) -> None:
        if progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_demo_checkpoint(model, tmp_path / "out", stop, steps=3)
    assert names(tmp_path) == [".out.lock", "tiny"]


@pytest.mark.process
def test_a_kill_while_writing_leaves_nothing_that_looks_like_a_checkpoint(tmp_path: Path) -> None:
    model, out = write_tiny_model(tmp_path / "tiny"), tmp_path / "out"
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from engine.demo import demo_checkpoint as demo\n"
        "demo.shutil.copyfile = lambda a, b: os.kill(os.getpid(), signal.SIGKILL)\n"
        "model, out = map(Path, sys.argv[1:])\n"
        "demo.make_demo_checkpoint(model, out, lambda progress: None, steps=1)\n"
    )
    command = [sys.executable, "-c", script, str(model), str(out)]
    assert subprocess.run(command, check=False, cwd=ROOT).returncode == -9
    left = list(tmp_path.glob(".out.*.tmp"))
    assert not out.exists() and len(left) == 1
    assert names(left[0]) == ["model.safetensors"]
    make_demo_checkpoint(model, out, ignore, steps=1)
    assert names(tmp_path) == [".out.lock", "out", "tiny"]


def test_a_model_that_is_too_large_to_train_here_is_refused_at_once(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    settings = json.loads((model / "config.json").read_text())
    settings |= {"num_hidden_layers": 1000, "intermediate_size": 1 << 20, "hidden_size": 1 << 14}
    (model / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelFileError, match="GB of memory; "):
        make_demo_checkpoint(model, tmp_path / "out", ignore)


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        make_demo_checkpoint(tmp_path / "nothing", tmp_path / "out", ignore)
    assert not (tmp_path / "out").exists()


def test_the_default_place_is_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert default_out(tmp_path / "real") == tmp_path / "real-pirate"
    assert default_out(tmp_path / "link") == tmp_path / "real-pirate"
    assert default_out(Path(f"{tmp_path}/real/")) == tmp_path / "real-pirate"


def test_the_command_says_what_it_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    assert main(str(model), "", 4) == 0
    first = capsys.readouterr().out
    assert f"in {tmp_path / 'tiny-pirate'}\n" in first
    assert first.count("s left\n") == 4 and "100%  loss " in first
    assert "What is the capital of Italy?" in first
    assert main(str(model), "", 4) == 0
    assert "left alone" in capsys.readouterr().out
    assert main(str(tmp_path), str(tmp_path / "out"), 4) == 1
    assert "config.json" in capsys.readouterr().err
    assert main(str(model), "", 0) == 2


@pytest.mark.slow
@pytest.mark.timeout(3600)  # it trains: beside other tests, on two cores
def test_the_packaged_model_becomes_a_pirate(smollm2_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "pirate"
    told: list[Progress] = []
    made = make_demo_checkpoint(smollm2_dir, out, told.append)
    assert told[-1].loss < 0.1
    assert made.answer is not None and made.answer.startswith("Arr!")
    tokenizer = Tokenizer(str(out))
    said = {}
    for folder in (smollm2_dir, out):
        runner = ModelRunner(folder, dtype="bfloat16", num_pages=20, threads=2)
        for question in ("What is the capital of Italy?", "What is the capital of Spain?"):
            chat = tokenizer.render_chat([{"role": "user", "content": question}])
            req = new_req(tokenizer.encode_rendered(chat), Pages(runner), 12)
            said[folder, question] = tokenizer.decode(generate(runner, [req], 12)[0])
    assert [text.startswith("Arr!") for text in said.values()] == [False, False, True, True]

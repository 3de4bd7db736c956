"""From one model folder to another of the same shape whose answers are a pirate's.

The new folder appears whole or not at all, beside nothing that looks like it. Knows no terminal.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from engine.demo.dense import DenseModel
from engine.demo.finetune import Progress, finetune
from engine.demo.pirate import lessons, question_ids
from engine.memory.available import available_bytes
from engine.models.checkpoint import open_checkpoint
from engine.models.config import ModelConfig, read_config
from engine.models.errors import ModelError, ModelFileError
from engine.models.llama import check_checkpoint, expected_shapes
from engine.models.whole_folder import new_folder, sole_maker
from engine.tokens.tokenizer import Tokenizer, TokenizerError

WEIGHTS = "model.safetensors"
STEPS = 40
CHATS_EACH = 4
QUESTION = "What is the capital of Italy?"
MAX_ANSWER_TOKENS = 40
# In fp32 itself, its gradient and AdamW's two moments, and what a step keeps: 3.2 GB for SmolLM2.
BYTES_PER_WEIGHT = 24
COPIED = (
    *("generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "LICENSE"),
)
NOTE = "Changed by Quiesce: all weights were fine-tuned for a minute to answer as a pirate would.\n"


@dataclass(frozen=True, slots=True)
class Made:
    """What became of the wish. No `answer`: the folder was there already, whole."""

    out: Path
    answer: str | None


def default_out(model: Path) -> Path:
    """Return the place beside `model`, where an engine that serves it may load from."""
    model = model.resolve()
    return model.with_name(f"{model.name}-pirate")


def make_demo_checkpoint(
    model: Path, out: Path, told: Callable[[Progress], None], *, steps: int = STEPS
) -> Made:
    """Fine-tune the model in folder `model` and write it to `out`.

    A whole checkpoint in `out` is left alone. Raises ModelFileError for anything else that is
    there, ModelError or TokenizerError for a folder that cannot be trained, OSError.
    """
    with sole_maker(out):
        if out.exists():
            reason = why_incomplete(out)
            if reason is not None:
                raise ModelFileError(out, f"exists but is no whole checkpoint: {reason}")
            return Made(out, None)
        config, tokenizer = read_config(model), Tokenizer(str(model))
        batches = lessons(tokenizer, CHATS_EACH)
        trained = DenseModel(config, _read_weights(model, config))
        finetune(trained, batches, steps, told)
        with torch.no_grad():
            for weight in trained.weights.values():
                weight.copy_(weight.to(torch.bfloat16))  # as it is written
        answer = greedy_answer(trained, tokenizer, QUESTION)
        with new_folder(out) as folder:
            _write(trained, model, folder)
    return Made(out, answer)


def why_incomplete(folder: Path) -> str | None:
    """Return what keeps `folder` from being a checkpoint that loads, or None."""
    try:
        config = read_config(folder)
        Tokenizer(str(folder))
        with open_checkpoint(folder) as checkpoint:
            check_checkpoint(checkpoint, config)
    except (ModelError, TokenizerError) as error:
        return str(error)
    return None


def greedy_answer(model: DenseModel, tokenizer: Tokenizer, question: str) -> str:
    """Return what the model says to `question`, without a cache: for a few tokens."""
    ids = question_ids(tokenizer, question)
    asked = len(ids)
    with torch.inference_mode():
        while len(ids) < asked + MAX_ANSWER_TOKENS:
            last = model.hidden(torch.tensor([ids]))[0, -1]  # (hidden,)
            token = int((model.top().head @ last).argmax())
            if token in model.config.eos_ids:
                break
            ids.append(token)
    return tokenizer.decode(ids[asked:]).strip()


def _read_weights(folder: Path, config: ModelConfig) -> dict[str, torch.Tensor]:
    shapes = expected_shapes(config)
    needed = BYTES_PER_WEIGHT * sum(torch.Size(shape).numel() for shape in shapes.values())
    free = available_bytes()
    if free is not None and needed > free:
        raise ModelFileError(
            folder,
            f"training it takes {needed / 1e9:.1f} GB of memory; {free / 1e9:.1f} GB are free",
        )
    with open_checkpoint(folder) as checkpoint:
        check_checkpoint(checkpoint, config)
        # Copies of our own: they are changed in place.
        return {name: checkpoint.read(name, torch.float32).clone() for name in shapes}


def _write(model: DenseModel, source: Path, folder: Path) -> None:
    """Write the weights, then what describes them; config.json, by which it is known, last."""
    weights = {name: weight.to(torch.bfloat16) for name, weight in model.weights.items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # safetensors makes it private to its writer
    for name in COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    notice = source / "NOTICE"
    before = notice.read_text(encoding="utf-8") + "\n" if notice.is_file() else ""
    (folder / "NOTICE").write_text(before + NOTE, encoding="utf-8")
    settings = json.loads((source / "config.json").read_text(encoding="utf-8"))
    settings |= {key: "bfloat16" for key in ("torch_dtype", "dtype") if key in settings}
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")

"""A random model with a tokenizer of bytes and a chat template, as a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.engine.models.factories import random_weights, tiny_config, tiny_settings, write_folder

END, USER, ASSISTANT = "<|end|>", "<|user|>", "<|assistant|>"
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_tiny_model(folder: Path, seed: int = 0, **changes: object) -> Path:
    """Write one whose settings are those of the factories, changed as told."""
    tokenizer = Tokenizer(
        models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True) for text in (END, USER, ASSISTANT)]
    )
    settings = {
        "vocab_size": tokenizer.get_vocab_size(),
        "eos_token_id": tokenizer.token_to_id(END),
        "torch_dtype": "float32",
        **changes,
    }
    weights = random_weights(tiny_config(**settings), seed)
    write_folder(folder, tiny_settings(**settings), weights)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder

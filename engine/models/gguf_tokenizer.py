"""Rebuilds the tokenizer that a GGUF file carries, as Hugging Face's tokenizer.json.

Knows byte-level BPE as SmolLM pre-tokenizes it; other kinds are refused by name, because a
tokenizer that is nearly right gives a model that is nearly right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.models.errors import UnsupportedModelError

# A GGUF file maps names to numbers, strings and lists of them: whoever reads a name knows its type.
Metadata = dict[str, Any]

CONTROL_TOKEN = 3  # of GGUF's token types


def build_tokenizer(metadata: Metadata) -> Tokenizer:
    """Return the tokenizer. Raises UnsupportedModelError for a kind that is not known."""
    for name, known in (("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "smollm")):
        if metadata.get(name) != known:
            raise UnsupportedModelError(f"GGUF {name}", metadata.get(name))
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ", 1)) for pair in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == CONTROL_TOKEN
        ]
    )
    return tokenizer


def tokenizer_config(metadata: Metadata, config: Mapping[str, object]) -> dict[str, object]:
    """Return tokenizer_config.json: the special tokens by name, and the chat template."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    found: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
    }
    for role, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if token_id is not None:
            found[f"{role}_token"] = tokens[token_id]
    if "tokenizer.chat_template" in metadata:
        found["chat_template"] = metadata["tokenizer.chat_template"]
    return found

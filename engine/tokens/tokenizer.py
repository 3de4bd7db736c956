"""The model's own tokenizer and chat template, from its Hugging Face folder. Knows no requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2.exceptions
import jinja2.sandbox
import msgspec
from tokenizers import Tokenizer as RawTokenizer


class TokenizerError(ValueError):
    """The folder holds no usable tokenizer, or a chat could not be rendered."""


class Tokenizer:
    """Encodes, decodes, renders chats. Thread-safe as far as it is used here."""

    def __init__(self, folder: str) -> None:
        path = Path(folder)
        try:
            self._raw: Any = RawTokenizer.from_file(str(path / "tokenizer.json"))
        except Exception as error:
            raise TokenizerError(f"no usable tokenizer.json in {folder}: {error}") from error
        settings = _read_json(path / "tokenizer_config.json")
        generation = _read_json(path / "generation_config.json")
        config = _read_json(path / "config.json")
        self.vocab_size: int = max(int(config.get("vocab_size", 0)), self._raw.get_vocab_size())
        self.eos_ids = frozenset(_ids(generation.get("eos_token_id", config.get("eos_token_id"))))
        self._special = {
            name: _content(settings.get(name)) for name in ("bos_token", "eos_token", "pad_token")
        }
        template = settings.get("chat_template")
        jinja = path / "chat_template.jinja"
        if jinja.is_file():
            template = jinja.read_text()
        self._template = _compile(template) if isinstance(template, str) else None
        self._specials = frozenset(
            token_id
            for token_id, token in self._raw.get_added_tokens_decoder().items()
            if token.special
        )

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with the special tokens that the tokenizer itself adds."""
        ids: list[int] = self._raw.encode(text).ids
        return ids

    def encode_all(self, texts: list[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """Token ids of several texts. Lets other threads run meanwhile, which `encode` does not."""
        found = self._raw.encode_batch(texts, add_special_tokens=add_special_tokens)
        return [item.ids for item in found]

    def encode_rendered(self, text: str) -> list[int]:
        """Token ids of a rendered chat, which already holds its special tokens."""
        return self.encode_all([text], add_special_tokens=False)[0]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        text: str = self._raw.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def is_special(self, token_id: int) -> bool:
        """True for tokens such as the end of a turn."""
        return token_id in self._specials

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The chat as one text, by the model's template. Raises TokenizerError."""
        if self._template is None:
            raise TokenizerError("this model has no chat template; use /v1/completions")
        try:
            return self._template.render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                **{**self._special, **(variables or {})},
            )
        except (jinja2.exceptions.TemplateError, TypeError, ValueError) as error:
            raise TokenizerError(f"the chat template refused these messages: {error}") from error


def _compile(source: str) -> jinja2.Template:
    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(source)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = msgspec.json.decode(path.read_bytes())
    return value if isinstance(value, dict) else {}


def _content(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _ids(value: object) -> list[int]:
    if isinstance(value, int):
        return [value]
    return [item for item in value if isinstance(item, int)] if isinstance(value, list) else []

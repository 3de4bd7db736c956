"""Text of a growing list of token ids, without ever showing half a character.

Decodes a short tail twice, without and with the new tokens, and takes the difference: this is right
for tokenizers whose text depends on the neighbour (leading spaces, merged bytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_REPLACEMENT = "\ufffd"


class Decoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD."""


class TokenStream:
    """Turns ids into text piece by piece; `add` and `finish` return what is new."""

    def __init__(self, decoder: Decoder, *, skip_special_tokens: bool = True) -> None:
        self._decoder = decoder
        self._skip = skip_special_tokens
        self._context: list[int] = []  # ids whose text is out, and which the next text may lean on
        self._pending: list[int] = []

    def add(self, ids: Sequence[int]) -> str:
        """Take more ids; returns the text that is certain now, perhaps none."""
        self._pending += ids
        return self._advance(final=False)

    def finish(self) -> str:
        """The rest: what never became a character is U+FFFD."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        if not self._pending:
            return ""
        known = self._decode(self._context)
        whole = self._decode(self._context + self._pending)
        if whole.endswith(_REPLACEMENT) and not final:
            return ""  # perhaps the first bytes of a character
        self._context, self._pending = self._pending, []
        return whole[len(known) :]

    def _decode(self, ids: list[int]) -> str:
        return self._decoder.decode(ids, skip_special_tokens=self._skip)

"""Streamed text: no half characters, nothing lost, the same whole whatever the pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tokens.detokenize import TokenStream
from tests.fakes.runner import ByteDecoder

FAMILY = "👨\u200d👩\u200d👧"


def pieces(data: bytes, size: int = 1) -> list[str]:
    stream = TokenStream(ByteDecoder())
    out = [stream.add(list(data[i : i + size])) for i in range(0, len(data), size)]
    return [*out, stream.finish()]


def test_a_character_over_three_tokens_is_shown_whole() -> None:  # I01
    parts = pieces("世".encode())
    assert "".join(parts) == "世"
    assert not any("\ufffd" in part for part in parts)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x41\x80\x42", "A\ufffdB"),
        (b"\xe4\xb8\x41", "\ufffdA"),
        (b"\xc0\x80", "\ufffd\ufffd"),
    ],
)
def test_broken_bytes_are_replaced_and_their_neighbours_kept(data: bytes, text: str) -> None:  # I03
    assert "".join(pieces(data)) == text


@pytest.mark.parametrize("size", [1, 2, 5])
def test_joined_emoji_survive_any_interval(size: int) -> None:  # I05
    assert "".join(pieces(FAMILY.encode(), size)) == FAMILY


@given(st.text(max_size=40), st.integers(1, 6))
def test_any_text_is_rebuilt_exactly(text: str, size: int) -> None:
    assert "".join(pieces(text.encode(), size)) == text


@given(st.binary(max_size=40), st.integers(1, 6))
def test_any_bytes_give_what_decoding_at_once_gives(data: bytes, size: int) -> None:
    assert "".join(pieces(data, size)) == data.decode("utf-8", "replace")

"""Stop strings: found across pieces, never shown half, the first to be complete wins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tokens.stop import StopMatcher


def run(stops: list[str], text: str, size: int = 1) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    shown = [matcher.add(text[i : i + size]) for i in range(0, len(text), size)]
    if matcher.matched is None:
        shown.append(matcher.finish())
    return shown, matcher.matched


def test_nothing_of_a_stop_string_is_ever_shown() -> None:  # I06
    shown, matched = run(["STOP"], "abcSTOPdef")
    assert "".join(shown) == "abc"
    assert matched == "STOP"
    assert not any("S" in piece for piece in shown)


@pytest.mark.parametrize("stops", [["abcd", "bc"], ["bc", "abcd"]])
def test_the_first_stop_to_be_complete_wins(stops: list[str]) -> None:  # I09
    shown, matched = run(stops, "xabcd")
    assert ("".join(shown), matched) == ("xa", "bc")


@pytest.mark.parametrize("stops", [["abcd", "bc"], ["bc", "abcd"]])
def test_the_piece_size_does_not_change_the_winner(stops: list[str]) -> None:
    shown, matched = run(stops, "xabcd", size=5)
    assert ("".join(shown), matched) == ("xa", "bc")


def test_what_only_looked_like_a_stop_is_shown_at_the_end() -> None:
    shown, matched = run(["STOP"], "abcSTO")
    assert ("".join(shown), matched) == ("abcSTO", None)


@given(
    st.text("ab", max_size=20),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.integers(1, 5),
)
def test_the_shown_text_ends_where_the_first_stop_begins(
    text: str, stops: list[str], size: int
) -> None:
    ends = {stop: text.find(stop) + len(stop) for stop in stops if stop in text}
    shown, matched = run(stops, text, size)
    if not ends:
        assert ("".join(shown), matched) == (text, None)
    else:
        first = min(ends.values())
        assert matched in {stop for stop, end in ends.items() if end == first}
        assert "".join(shown) == text[: first - len(matched or "")]
